// Measures attention and gelu of the CPU device at the shapes of the GPTs of gpt-shape.mjs, by the
// processor time of the one thread that runs them. Builds of tensor-core (its dist, and copies that
// were made of it before a change) take turns, so that a loaded machine slows all alike.
// Usage: node bench/kernels/cpu.mjs [--builds DIST,DIST] [--rounds 60] [--report FILE]

import '../relaxed-simd.mjs';
import { createRequire } from 'node:module';
import { resolve } from 'node:path';
import { flagsOf } from '../figures/flags.mjs';
import { publish } from '../figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from '../figures/record.mjs';
import { table } from '../figures/table.mjs';
import { MODELS } from '../gpt-shape.mjs';

/** CLOCK_THREAD_CPUTIME_ID, which Linux alone has under this number. */
const THREAD_CLOCK = 3;

const flags = flagsOf({
  builds: 'packages/tensor-core/dist',
  rounds: '60',
  report: undefined,
});
const record = await startRecord('bench/kernels/cpu.mjs');
// A device without threads times its kernels by this clock.
const wallClock = performance.now;
performance.now = threadClock();
const builds = flags.builds.split(',');
const backends = [];
for (const build of builds) {
  const { createCpuBackend } = await import(`${resolve(build)}/cpu.js`);
  backends.push(await createCpuBackend({ threads: 0 }));
}
const times = [];
for (const name of ['small', '26m']) {
  await measure(name, attentionCalls);
  await measure(name, geluCalls);
}
for (const backend of backends) {
  await backend.dispose();
}
performance.now = wallClock;
await endRecord(record);
Object.assign(record, { flags, times });
publish(flags.report, report(), record);

/** Returns a function that tells the ms of processor time of the thread that calls it. */
function threadClock() {
  const from = new URL('../../packages/tensor-core/package.json', import.meta.url);
  const koffi = createRequire(from)('koffi');
  const gettime = koffi.load('libc.so.6').func('int clock_gettime(int, void *)');
  const at = new BigInt64Array(2);
  return () => {
    gettime(THREAD_CLOCK, at);
    return Number(at[0]) * 1e3 + Number(at[1]) / 1e6;
  };
}

async function measure(name, callsOf) {
  const prepared = backends.map((backend) => callsOf(backend, MODELS[name]));
  const samples = new Map();
  for (let round = 0; round < Number(flags.rounds); round++) {
    for (const [i, backend] of backends.entries()) {
      for (const [kernel, ms] of await timesOfKernels(backend, prepared[i].calls)) {
        const lists = samples.get(kernel) ?? builds.map(() => []);
        lists[i].push(ms);
        samples.set(kernel, lists);
      }
    }
  }
  for (const [kernel, lists] of samples) {
    times.push({ name, kernel, builds: lists.map(timesOf) });
  }
  for (const { buffers } of prepared) {
    for (const [i, buffer] of buffers) {
      backends[i].free(buffer);
    }
  }
}

async function timesOfKernels(backend, calls) {
  const found = [];
  backend.trace(({ track, name, startMs, endMs }) => {
    if (track === 'device') {
      found.push([name, endMs - startMs]);
    }
  });
  for (const [kernel, call] of calls) {
    backend.run(kernel, call);
  }
  await backend.sync();
  backend.trace(undefined);
  return found;
}

/** Returns what makes views of random numbers, and the buffers that it took. */
function room(backend) {
  const buffers = [];
  let state = 1;
  const view = (size) => {
    const buffer = backend.alloc(size * 4, 'bench');
    buffers.push([backends.indexOf(backend), buffer]);
    const values = Float32Array.from({ length: size }, () => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      return (state / 2 ** 32 - 0.5) * 4;
    });
    backend.write(buffer, 0, new Uint8Array(values.buffer));
    return { buffer, byteOffset: 0, dtype: 'f32', size };
  };
  return { buffers, view };
}

/** Causal attention whose queries, keys and values are parts of one projection, as in GPT-2. */
function attentionCalls(backend, { batch, seq, width, heads }) {
  const { buffers, view } = room(backend);
  const [qkv, slopes] = [0, 1].map(() => view(batch * seq * 3 * width));
  const [out, dOut] = [0, 1].map(() => view(batch * seq * width));
  const part = (all, at) => ({ ...all, byteOffset: at * width * 4, size: all.size - 2 * width });
  const dim = width / heads;
  const strides = { batch: seq * 3 * width, head: dim, row: 3 * width };
  const call = {
    ...{ q: part(qkv, 0), k: part(qkv, 1), v: part(qkv, 2), out },
    stats: view(2 * batch * heads * seq),
    ...{ mask: undefined, querySegments: undefined, keySegments: undefined, dropout: undefined },
    ...{ batch, numHeads: heads, numKvHeads: heads, numQueries: seq, numKeys: seq, dim },
    ...{ scale: 1 / Math.sqrt(dim), queryOffset: 0, isCausal: true, window: 0 },
    ...{ qStrides: strides, kStrides: strides, vStrides: strides, maskStrides: [0, 0, 0, 0] },
  };
  const gradients = { dOut, dq: part(slopes, 0), dk: part(slopes, 1), dv: part(slopes, 2) };
  return {
    buffers,
    calls: [
      ['attention', call],
      ['attentionBackward', { ...call, ...gradients }],
    ],
  };
}

function geluCalls(backend, { batch, seq, width }) {
  const { buffers, view } = room(backend);
  const [x, dy, out] = [0, 1, 2].map(() => view(batch * seq * 4 * width));
  return {
    buffers,
    calls: [
      ['unary', { kind: 'geluTanh', x, out }],
      ['unaryBackward', { kind: 'geluTanh', x, dy, out }],
    ],
  };
}

function report() {
  const body = times.map(({ name, kernel, builds: [first, ...others] }) => [
    name,
    kernel,
    ...[first, ...others].flatMap(({ best, median }) => [best.toFixed(3), median.toFixed(3)]),
    ...others.flatMap((other) => [
      (other.best / first.best).toFixed(2),
      (other.median / first.median).toFixed(2),
    ]),
  ]);
  const head = [
    'model',
    'kernel',
    ...builds.flatMap((_, i) => [`ms of build ${i + 1}, best`, 'median']),
    ...builds.slice(1).flatMap((_, i) => [`build ${i + 2} / 1, best`, 'median']),
  ];
  return [
    headOf("Kernels of the CPU device, a thread's processor time", record),
    `One call of each at the model's shape, f32, ${flags.rounds} rounds in turns.`,
    table(head, body),
  ].join('\n\n');
}
