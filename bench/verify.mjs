// What it costs to compute a run again, and to hash a model. The default run of 100 steps is
// trained and verified in turn, and processor time is compared; it fails where verifying takes more
// than 1.2 times as much. Then 124M parameters with AdamW's state are hashed on one thread. It
// needs the built packages.
// Usage: node bench/verify.mjs [--steps 100] [--rounds 2] [--report FILE]

import { hash } from 'node:crypto';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { AdamW, hashModel, Module } from '../packages/nn/dist/index.js';
import { createCpuBackend } from '../packages/tensor-core/dist/cpu.js';
import { Device } from '../packages/tensor-core/dist/index.js';
import { secondsOf } from './figures/command-time.mjs';
import { flagsOf } from './figures/flags.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const MOST = 1.2;
/** Parameters of as many elements as GPT-2's, in pieces of the size of its layers. */
const [PIECES, ELEMENTS] = [12, 10_370_000];
const HASHES = 5;

const flags = flagsOf({
  steps: '100',
  rounds: '2',
  report: undefined,
});
const record = await startRecord('bench/verify.mjs');
const scratch = join(import.meta.dirname, '.shardweave');
mkdirSync(scratch, { recursive: true });
const folder = mkdtempSync(join(scratch, 'verify-'));
const trained = [];
const verified = [];
try {
  for (let round = 0; round < Number(flags.rounds); round++) {
    const out = join(folder, `run-${round}`);
    trained.push(
      await secondsOf(
        ['train', '--steps', flags.steps, '--hash-every', '50', '--out', out],
        folder,
      ),
    );
    verified.push(await secondsOf(['verify', out], folder));
  }
} finally {
  rmSync(folder, { recursive: true, force: true });
}
const hashed = await hashMs();
await endRecord(record);
const [train, verify] = [timesOf(trained), timesOf(verified)];
const ratio = verify.best / train.best;
Object.assign(record, { flags, trained, verified, ratio, hashed });
publish(flags.report, report(), record);
if (ratio > MOST) {
  console.error(`Verifying takes more than ${MOST} times the processor time of training.`);
  process.exitCode = 1;
}

/** Milliseconds of processor time for one hash, of parameters alone and of all state. */
async function hashMs() {
  const device = new Device(await createCpuBackend({ threads: 1 }));
  class Large extends Module {
    constructor() {
      super(device);
      for (let i = 0; i < PIECES; i++) {
        this.parameter(`w${i}`, device.full([ELEMENTS], i));
      }
    }
  }
  const model = new Large();
  const optimizer = new AdamW(model.parameters(), { lr: 1e-3 });
  for (const parameter of model.parameters()) {
    parameter.grad = device.full([ELEMENTS], 0.5);
  }
  await optimizer.step();
  optimizer.zeroGrad();
  const sha256 = (bytes) => hash('sha256', bytes, 'buffer');
  const ways = {
    'parameters, node:crypto': { sha256 },
    'parameters and state, node:crypto': { sha256, optimizer },
    'parameters, WebCrypto': {},
  };
  const found = [];
  for (const [what, options] of Object.entries(ways)) {
    const ms = [];
    for (let i = 0; i < HASHES; i++) {
      const before = process.cpuUsage();
      await hashModel(model, options);
      const { user, system } = process.cpuUsage(before);
      ms.push((user + system) / 1000);
    }
    found.push({ what, ...timesOf(ms) });
  }
  return found;
}

function report() {
  const s = (value) => `${value.toFixed(1)} s`;
  const ms = (value) => `${value.toFixed(0)} ms`;
  const rows = [
    ['trained', s(train.best), s(train.median), ''],
    ['verified', s(verify.best), s(verify.median), ratio.toFixed(2)],
  ];
  const megabytes = (PIECES * ELEMENTS * 4) / 1e6;
  return [
    headOf('Computing a run again', record),
    `${flags.steps} steps of the default run (two ranks, fsdp over memory), hashed after every 50 steps, ${flags.rounds} rounds in turn; verified from its first weights. Processor time of the whole command. The bound is ${MOST} of the best.`,
    table(['', 'best', 'median', 'of training'], rows),
    `One hash of ${((PIECES * ELEMENTS) / 1e6).toFixed(0)}M parameters in f32, ${megabytes.toFixed(0)} MB, and with AdamW's state three times as much; processor time of ${HASHES} hashes. WebCrypto is what pages have; it works in threads beside.`,
    table(
      ['hashed', 'best', 'median'],
      hashed.map(({ what, best, median }) => [what, ms(best), ms(median)]),
    ),
  ].join('\n\n');
}
