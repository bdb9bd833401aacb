// Made runs for the page: two ranks of which one failed, with text in it that would be markup.

import type { RunRecord } from '../../src/output/run-records.js';

export const EVIL =
  '</script><img src=x onerror="window.isTaken=true"><script>window.isTaken=true</script>';

const step = (n: number, shift = 0): RunRecord => ({
  type: 'step',
  step: n,
  loss: 4 - n / 100 + shift,
  targets: 64,
  gradNorm: n === 3 ? null : n === 60 ? 500 : 1 / n,
  lr: 1e-3,
  lossScale: 1,
  skipped: false,
  stepMs: 50,
  tokensPerSecond: 900,
  ...(n % 10 === 0 && {
    validLoss: 4 - n / 100,
    figures: { accuracy: n / 200, f1: n / 400 },
  }),
  tokens: 64 * n,
  epoch: n / 50,
  ...(n % 20 === 0 && {
    evalMs: 30,
    groups: {
      wte: { gradNorm: 0.5 },
      'h.0': { gradNorm: 0.25 },
    },
  }),
  peakBytes: 4096,
  wireBytes: 2048,
  collectiveMs: 20,
  exposedMs: 5,
  atMs: 1000 + 50 * n,
});
const bytes = (scale: number) => ({
  ...{ parameter: scale, gathered: 0, gradient: scale, optimizer: 2 * scale },
  ...{ activation: 3 * scale, staging: 0, total: 7 * scale },
});
const rank = (n: number): RunRecord => ({
  ...{ type: 'rank', rank: n, step: 64, bytesSent: 10, bytesReceived: 20, atMs: 7000 },
  ...{ collectiveMs: 20, exposedMs: 5 },
  phases: [
    { phase: 'forward', bytes: bytes(1000 + n) },
    { phase: 'backward', bytes: bytes(2000) },
  ],
});
/** The records of a run whose losses are shifted. */
export const madeRun = (shift: number): RunRecord[] => [
  { type: 'run', title: `run ${EVIL}`, steps: 120, ranks: 2, atMs: 1000 },
  {
    type: 'header',
    rows: [
      ['model', EVIL],
      ['optim', `lr ${shift}`],
    ],
  },
  ...[0, 1].map((n): RunRecord => {
    const about = {
      device: 'cpu',
      description: EVIL,
      isSoftware: true,
      host: EVIL,
      numericClass: '',
      shardBytes: 4,
    } as const;
    return { type: 'ready', rank: n, ...about };
  }),
  ...Array.from({ length: 120 }, (_, i) => step(i + 1, shift)),
  rank(0),
  rank(1),
  {
    type: 'classes',
    step: 120,
    classes: [
      { label: EVIL, precision: 0.5, recall: 0.25, f1: 1 / 3, support: 4 },
      { label: 'fog', precision: 1, recall: 1, f1: 1, support: 3 },
    ],
    confusion: [
      [1, 3],
      [0, 3],
    ],
  },
  { type: 'compute', flopsPerToken: 1e9, peakFlops: 3.6e12 },
  ...[60, 120].map((at): RunRecord => ({ type: 'sample', step: at, prompt: EVIL, text: EVIL })),
  ...[50, 100].map((at): RunRecord => {
    const save = { bytes: 5000, ms: 30, waitMs: 2, atMs: 6000 };
    return { type: 'save', step: at, directory: `${EVIL}${at}`, ...save };
  }),
  { type: 'saveGone', step: 50, directory: `${EVIL}50`, atMs: 6500 },
  { type: 'warning', text: EVIL },
  { type: 'rankEnd', rank: 1, end: 'failed', reason: EVIL, atMs: 7000 },
  { type: 'runEnd', end: 'failed', reason: EVIL, atMs: 7000 },
];
