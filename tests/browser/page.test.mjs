// The admin page in a real browser: it is read, a replay is tried and done, a wrong token gets nowhere, and it fits a
// narrow screen. It drives the dashboard example; screenshots are left in target/browser/.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync } from "node:fs";
import { createServer } from "node:net";
import { fileURLToPath } from "node:url";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";

const root = fileURLToPath(new URL("../..", import.meta.url));
const shots = `${root}/target/browser`;
const LIMIT = 60_000;
let shop, browser, base, token;

const freePort = () =>
  new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });

before(async () => {
  mkdirSync(shots, { recursive: true });
  const port = await freePort();
  shop = spawn(`${root}/target/debug/examples/dashboard`, ["--addr", `127.0.0.1:${port}`]);
  let said = "";
  shop.stderr.on("data", (text) => (said += text));
  token = await new Promise((resolve, reject) => {
    shop.stdout.on("data", (text) => {
      said += text;
      const found = said.match(/token: (\S+)/);
      if (found) resolve(found[1]);
    });
    shop.on("exit", () => reject(new Error(`the example ended: ${said}`)));
  });
  base = `http://127.0.0.1:${port}`;
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
  // Until there is something to look at: a dead letter of the group that ships.
  for (const start = Date.now(); ; ) {
    const overview = await fetch(`${base}/api/overview`).then((answer) => answer.json(), () => undefined);
    const shipping = overview?.groups.find((group) => group.group === "shipping");
    if (overview?.ready && shipping?.letters_in_queue?.Ok > 0) break;
    assert.ok(Date.now() - start < LIMIT, "the shop gets going");
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
});

after(async () => {
  await browser?.close();
  shop?.removeAllListeners("exit");
  shop?.kill("SIGTERM");
});

const open = async (path, options = {}) => {
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 }, ...options });
  page.setDefaultTimeout(LIMIT);
  // What the content security policy refuses, and scripts that fail, are said here.
  page.complaints = [];
  page.on("console", (message) => message.type() === "error" && page.complaints.push(message.text()));
  await page.goto(base + path);
  return page;
};

test("it is read without scripts, in light and dark", async () => {
  for (const colorScheme of ["light", "dark"]) {
    const page = await open("/", { javaScriptEnabled: false, colorScheme });
    await page.getByRole("heading", { name: "Everything runs" }).waitFor();
    for (const group of ["billing", "shipping", "statistics"]) {
      await page.getByRole("heading", { name: `Group ${group}` }).waitFor();
    }
    assert.equal(await page.locator("form").count(), 0, "strangers change nothing");
    await page.screenshot({ path: `${shots}/overview-${colorScheme}.png`, fullPage: true });
    await page.close();
  }
});

test("a wrong token gets nowhere", async () => {
  const page = await open("/login");
  await page.getByLabel("Your name").fill("mallory");
  await page.getByLabel("Token").fill("not-the-token-of-the-shop");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByText("That is not the token.").waitFor();
  await page.goto(`${base}/`);
  assert.equal(await page.getByText("mallory").count(), 0);
  await page.close();
});

test("a replay is tried first, and then done", async () => {
  const page = await open("/login");
  await page.getByLabel("Your name").fill("ada");
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByText("ada").waitFor();
  await page.goto(`${base}/dlq?group=shipping`);
  await page.screenshot({ path: `${shots}/letters.png`, fullPage: true });
  await page.getByRole("link", { name: "look at it" }).first().click();
  await page.getByRole("heading", { name: "Headers" }).waitFor();
  assert.equal(await page.locator("pre.payload").count(), 0, "no payload unless it is asked for");
  await page.getByRole("button", { name: "Show key and value" }).click();
  await page.locator("pre.payload").waitFor();
  await page.screenshot({ path: `${shots}/letter.png`, fullPage: true });
  await page.getByRole("button", { name: "Try to replay this one" }).click();
  await page.getByRole("heading", { name: "A replay would do this" }).waitFor();
  await page.screenshot({ path: `${shots}/dry-run.png`, fullPage: true });
  await page.getByRole("button", { name: /Replay 1 event now/ }).click();
  await page.getByRole("heading", { name: "Replayed" }).waitFor();
  assert.deepEqual(page.complaints, []);
  await page.close();
});

test("it fits a narrow screen", async () => {
  const page = await open("/", { viewport: { width: 375, height: 800 } });
  const [wide, screen] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(wide <= screen, `the page is ${wide} px wide on a screen of ${screen}`);
  await page.screenshot({ path: `${shots}/narrow.png`, fullPage: true });
  assert.deepEqual(page.complaints, []);
  await page.close();
});
