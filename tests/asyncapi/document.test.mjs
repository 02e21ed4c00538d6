// The AsyncAPI document that a program prints of its handlers, as AsyncAPI's own parser reads it.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { before, test } from "node:test";
import { Parser } from "@asyncapi/parser";

const program = fileURLToPath(new URL("../../target/debug/shop", import.meta.url));
let parsed, document;

before(async () => {
  // Without any setting, as in a build.
  const printed = execFileSync(program, ["--asyncapi"], { env: {}, encoding: "utf8" });
  parsed = await new Parser().parse(printed);
  document = parsed.document;
});

test("it is a valid document of version 3", () => {
  // 0 is an error, 1 a warning; the rest is advice.
  const faults = parsed.diagnostics.filter(({ severity }) => severity <= 1);
  assert.deepEqual(faults, []);
  assert.equal(document.version(), "3.0.0");
  assert.equal(document.info().title(), "shop");
});

test("each topic is a channel with the messages of its handlers", () => {
  const channels = Object.fromEntries(
    document.channels().all().map((channel) => [channel.address(), channel.messages().all().map((one) => one.name()).sort()]),
  );
  assert.deepEqual(channels, {
    "shop.orders": ["OrderPlaced"],
    "shop.paid": ["OrderPaid", "paid"],
    "shop.counted": ["Told"],
    "shop.enveloped": ["Envelope_Line"],
  });
});

test("each handler is an operation of its group", () => {
  const operations = document.operations().all().map((operation) => {
    const { groupId } = operation.bindings().get("kafka").value();
    return [operation.id(), operation.action(), operation.channels().all()[0].address(), groupId.enum[0]];
  });
  assert.deepEqual(operations.sort(), [
    ["shop::checkout", "receive", "shop.orders", "shop-checkout"],
    ["shop::count", "receive", "shop.paid", "shop-counts"],
    ["shop::report", "receive", "shop.paid", "shop-report"],
    ["shop::ship", "receive", "shop.paid", "shop-shipping"],
    ["shop::told", "receive", "shop.counted", "shop-told"],
    ["shop::unpacked", "receive", "shop.enveloped", "shop-told"],
  ]);
});

test("an operation says what its handler says of itself", () => {
  const summaries = document.operations().all().filter((operation) => operation.hasSummary());
  assert.deepEqual(summaries.map((operation) => [operation.id(), operation.summary()]), [["shop::ship", "ships a paid order"]]);
});

test("a payload has the schema that its event derives, to the last nested type", () => {
  const payload = (address) => {
    const channel = document.channels().all().find((channel) => channel.address() === address);
    return channel.messages().all()[0].payload().json();
  };
  const order = payload("shop.orders");
  assert.deepEqual(order.required.toSorted(), ["amount", "card", "event_id", "lines"]);
  assert.equal(order.properties.event_id.format, "uuid");
  assert.equal(order.properties.amount.description, "In cents.");
  assert.deepEqual(order.properties.lines.items.required, ["article"]);
  assert.equal(payload("shop.counted").type, "object", "an event without a schema is an object");
});
