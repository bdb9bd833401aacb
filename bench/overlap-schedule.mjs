// How much of a delay in every collective the schedule hides, apart from what the cores are busy
// with. A device that sleeps through its matrix products stands in for computation, so neither
// computation nor the delay occupies a core. There are two ranks in one process with a GPT of six
// blocks. It needs the built packages.
// Usage: node bench/overlap-schedule.mjs [--delay 60] [--product 20] [--rounds 3] [--report FILE]

import { createMemoryGroup } from '../packages/collectives/dist/index.js';
import { withDelay } from '../packages/collectives/dist/testing.js';
import { FullyShardedDataParallel } from '../packages/fsdp/dist/index.js';
import { AdamW, Gpt2 } from '../packages/nn/dist/index.js';
import { Device, mean } from '../packages/tensor-core/dist/index.js';
import { createReferenceBackend } from '../packages/tensor-core/dist/testing.js';
import { flagsOf } from './figures/flags.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const SHAPE = { vocab_size: 37, n_positions: 8, n_embd: 12, n_layer: 6, n_head: 2 };
const WARM_UP_STEPS = 2; // the first step learns the order of units
const STEPS = 4;
const CASES = [
  { name: 'each unit reduced alone', options: { bucketCapMb: 0 } },
  { name: 'one bucket (the default)', options: {} },
  { name: 'not resharding, alone', options: { bucketCapMb: 0, reshardAfterForward: false } },
  { name: 'one unit ahead, alone', options: { bucketCapMb: 0, gatherCapBytes: 12 * 1024 } },
];

const flags = flagsOf({
  delay: '60',
  product: '20',
  rounds: '3',
  report: undefined,
});
const delayMs = Number(flags.delay);
const productMs = Number(flags.product);
const record = await startRecord('bench/overlap-schedule.mjs');

const rows = [];
for (const { name, options } of CASES) {
  const plain = [];
  const delayed = [];
  let last;
  for (let round = 0; round < Number(flags.rounds); round++) {
    plain.push(...(await run(0, options)).stepMs);
    last = await run(delayMs, options);
    delayed.push(...last.stepMs);
  }
  const [t0, t1] = [timesOf(plain).median, timesOf(delayed).median];
  const exposed = t1 - t0;
  const total = last.calls * delayMs;
  // Nothing can hide the first gather and the last reduction: the step has nothing before the one
  // and nothing after the other.
  const bare = 2 * delayMs;
  rows.push([
    name,
    last.calls,
    `${total} ms`,
    `${t0.toFixed(0)} ms`,
    `${t1.toFixed(0)} ms`,
    `${exposed.toFixed(0)} ms`,
    percent(1 - exposed / total),
    total > bare ? percent(1 - (exposed - bare) / (total - bare)) : '',
  ]);
}
const head = [
  'case',
  'collectives a step',
  'sum of delays',
  'step without',
  'step with',
  'exposed',
  'hidden of all',
  'hidden but for the first gather and the last reduction',
];
await endRecord(record);
Object.assign(record, { delayMs, productMs, rounds: Number(flags.rounds), rows });
const text = [
  headOf('Overlap of the schedule', record),
  `Matrix products sleep ${productMs} ms, collectives ${delayMs} ms more than they take. Medians of ${Number(flags.rounds) * STEPS} steps.`,
  table(head, rows),
].join('\n\n');
publish(flags.report, text, record);

/** The steps of rank 0, and the gathers and reductions in each. */
async function run(delay, options) {
  const backend = createReferenceBackend();
  const groups = createMemoryGroup(2);
  const perRank = await Promise.all(
    groups.map(async (bare) => {
      const device = new Device(sleeping(backend), { seed: 7 });
      const delayed = (group) => (delay > 0 ? withDelay(group, delay) : group);
      const processGroup = delayed(bare);
      const processGroupReduceScatter = delayed(await bare.split(0));
      const both = [processGroup, processGroupReduceScatter];
      const gpt = new Gpt2(device, { ...SHAPE, embd_pdrop: 0, attn_pdrop: 0, resid_pdrop: 0 });
      const shared = { processGroup, processGroupReduceScatter, ...options };
      const wrap = (module) => new FullyShardedDataParallel(module, shared);
      for (const name of [...gpt.children().keys()].slice(1, -1)) {
        gpt.replaceChild(name, wrap(gpt.children().get(name)));
      }
      const model = wrap(gpt);
      const optimizer = new AdamW(model.parameters(), { lr: 1e-3 });
      const stepMs = [];
      let calls = 0;
      for (let step = 0; step < WARM_UP_STEPS + STEPS; step++) {
        const before = count(both);
        const startMs = performance.now();
        await device.scope(async () => {
          const ids = Int32Array.from({ length: 9 }, (_, i) => (5 * i + step) % SHAPE.vocab_size);
          const x = device.tensor(ids.slice(0, 8), [1, 8]);
          const loss = mean(await model.call(x, { targets: device.tensor(ids.slice(1), [1, 8]) }));
          await loss.backward();
        });
        await optimizer.step();
        optimizer.zeroGrad();
        await device.synchronize();
        if (step >= WARM_UP_STEPS) {
          stepMs.push(performance.now() - startMs);
        }
        calls = count(both) - before;
      }
      return { stepMs, calls };
    }),
  );
  for (const group of groups) {
    await group.close();
  }
  await backend.dispose();
  return perRank[0];
}

function count(groups) {
  return groups.reduce((sum, group) => {
    const { allGathers, reduceScatters } = group.stats();
    return sum + allGathers + reduceScatters;
  }, 0);
}

/**
 * Puts a queue before `inner` in which matrix products sleep. Each one sleeps until the time at
 * which it would end on a device of its own, so that late timers do not add up.
 */
function sleeping(inner) {
  let tail = Promise.resolve();
  let endMs = 0;
  const later = (work) => {
    const done = tail.then(work);
    tail = done.catch(() => undefined);
    return done;
  };
  const own = {
    free: (buffer) => void later(() => inner.free(buffer)),
    write: (buffer, byteOffset, bytes) => {
      const copy = bytes.slice();
      void later(() => inner.write(buffer, byteOffset, copy));
    },
    read: (...call) => later(() => inner.read(...call)),
    copy: (...call) => void later(() => inner.copy(...call)),
    run: (kernel, call) => {
      if (kernel === 'matmul') {
        endMs = Math.max(endMs, performance.now()) + productMs;
        const own = endMs;
        void later(async () => {
          const leftMs = own - performance.now();
          if (leftMs > 0) {
            await new Promise((resolve) => setTimeout(resolve, leftMs));
          }
        });
      }
      void later(() => inner.run(kernel, call));
    },
    sync: () => later(() => inner.sync()),
  };
  return new Proxy(inner, {
    get: (target, name) => {
      const value = own[name] ?? target[name];
      return typeof value === 'function' && own[name] === undefined ? value.bind(target) : value;
    },
  });
}

function percent(share) {
  return `${(100 * share).toFixed(0)} %`;
}
