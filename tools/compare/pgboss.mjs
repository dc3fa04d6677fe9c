// Runs one process of pg-boss for `durable bench compare`: `node pgboss.mjs ROLE [ARGUMENT]`, on DATABASE_URL. The roles
// are those of src/main.rs. A worker fetches 500 jobs at a time, again at once while batches are full, and is notified of
// new jobs.
import { PgBoss } from "pg-boss";

const [, , role, argument = "0"] = process.argv;
const number = Number(argument);
const queue = "flow";
const producers = 10;
const now = () => Math.round((performance.timeOrigin + performance.now()) * 1e6);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const print = (line) => new Promise((resolve) => process.stdout.write(`${line}\n`, resolve));
const stdinClosed = () => new Promise((resolve) => process.stdin.on("end", resolve).resume());

async function start(options) {
  const boss = new PgBoss({ connectionString: process.env.DATABASE_URL, schedule: false, ...options });
  boss.on("error", (error) => console.error(error.message));
  await boss.start();
  return boss;
}

async function setup() {
  const boss = await start({ max: 2 });
  await boss.createQueue(queue, { notify: true });
}

async function fill() {
  const boss = await start({ max: 2, supervise: false });
  for (let left = number; left > 0; left -= 10_000) {
    await boss.insert(queue, Array.from({ length: Math.min(left, 10_000) }, () => ({ data: { at: now() } })));
  }
}

async function worker() {
  const boss = await start({ max: 10, useListenNotify: true });
  const starts = [];
  const options = { batchSize: 500, localConcurrency: 4, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true };
  await boss.work(queue, options, async (jobs) => {
    const started = now();
    for (const job of jobs) starts.push([job.data.at, started]);
  });
  await print("ready");
  await stdinClosed();
  await print(JSON.stringify(starts));
}

async function produce() {
  const clients = [];
  for (let n = 0; n < producers; n++) {
    const boss = await start({ max: 1, supervise: false, migrate: false, useListenNotify: true });
    // The first call on a new connection is slower.
    await boss.send(queue, { at: now() });
    clients.push(boss);
  }
  await print("ready");
  let stopped = false;
  let enqueued = 0;
  const running = clients.map(async (boss, index) => {
    const pause = number > 0 ? (producers * 1000) / number : 0;
    let due = performance.now() + (pause * index) / producers;
    while (!stopped) {
      if (pause > 0) {
        await sleep(Math.max(0, due - performance.now()));
        due += pause;
      }
      await boss.send(queue, { at: now() });
      enqueued++;
    }
  });
  await stdinClosed();
  stopped = true;
  await Promise.all(running);
  await print(enqueued);
}

await { setup, fill, worker, produce }[role]();
process.exit(0);
