"""The usual Python consumer: one transaction with the dedup row and the change, then the offset.

It says how long it took from its first event to its last.
"""

import asyncio
import sys
import time
import uuid

import asyncpg
from aiokafka import AIOKafkaConsumer, TopicPartition
from pydantic import BaseModel


class Event(BaseModel):
    event_id: uuid.UUID
    account_id: int
    amount: int


async def handle(connection: asyncpg.Connection, group: str, value: bytes) -> None:
    event = Event.model_validate_json(value)
    async with connection.transaction():
        inserted = await connection.execute(
            "INSERT INTO processed_event (event_id, consumer_group) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            event.event_id,
            group,
        )
        if inserted != "INSERT 0 0":
            await connection.execute(
                "UPDATE account SET balance = balance + $1 WHERE id = $2", event.amount, event.account_id
            )


async def main(brokers: str, database: str, topic: str, group: str, count: int) -> None:
    connection = await asyncpg.connect(database)
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=brokers, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await consumer.start()
    first = 0.0
    for done in range(count):
        message = await consumer.getone()
        if done == 0:
            first = time.monotonic()
        await handle(connection, group, message.value)
        await consumer.commit({TopicPartition(message.topic, message.partition): message.offset + 1})
    print(f"done {time.monotonic() - first}", flush=True)
    await consumer.stop()
    await connection.close()


asyncio.run(main(*sys.argv[1:5], int(sys.argv[5])))
