// The first losses on WebGPU are compared with PyTorch's: in one process, in several, and in jobs
// whose ranks run on both kinds of device. A cell of each kind runs, and with SHARDWEAVE_LONG=1 all
// that are listed.

import { beforeAll, describe, expect, it } from 'vitest';
import { buildCommand } from './support/build-command.js';
import { expectReference, losses } from './support/expect-reference.js';
import { type RunRecord, referenceCase, runFlags, worstRatio } from './support/run-flags.js';
import { whyNoWebGpu } from './support/webgpu-adapter.js';

const SINGLE = '--strategy single --device webgpu';
const CELLS = [
  ['cosine-fp32', SINGLE],
  ['cosine-fp16', '--strategy ddp --ranks 2 --device webgpu,cpu'],
] as const;
const LONG_CELLS = [
  ['accum-bf16', '--ranks 2 --no-sync --device webgpu'],
  ['cosine-fp32', '--ranks 2 --transport ws --device webgpu'],
  ['cosine-bf16', SINGLE],
  ['cosine-fp16', SINGLE],
  ['cosine-fp32', '--ranks 2 --device webgpu'],
  ['cosine-bf16', '--ranks 3 --no-reshard --device webgpu'],
  ['cosine-fp16', '--ranks 4 --fp32-reduce --device webgpu'],
  ['cosine-fp32', '--ranks 3 --checkpoint-activations --device webgpu'],
  ['cosine-fp32', '--strategy ddp --ranks 2 --device webgpu'],
  ['cosine-fp32', '--ranks 2 --device cpu,webgpu'],
  ['cosine-fp32', '--strategy ddp --ranks 2 --device cpu,webgpu'],
  ['cosine-bf16', '--ranks 3 --checkpoint-activations --device webgpu,cpu,cpu'],
  ['cosine-fp16', '--ranks 2 --transport ws --device webgpu,cpu'],
] as const;

const isLong = process.env.SHARDWEAVE_LONG === '1';
/**
 * A software driver needs a fifth of a second for each step. What a device and several ranks change
 * shows in the first steps: gathers, reductions, clipping, the optimizer's state and the schedule.
 */
const NUM_STEPS = isLong ? 20 : 5;

/** On one device, sharded and single runs differ only by the order of sums. */
const SHARDED_TOLERANCE = 2e-6;
/** A driver that has compiled nothing yet needs a quarter of a second for each pipeline. */
const COLD_MS = 480_000;

const reason = await whyNoWebGpu();

describe.skipIf(reason !== undefined)(`webgpu${reason === undefined ? '' : ` (${reason})`}`, () => {
  let entry: string;
  let single: RunRecord;
  const run = (name: string, flags: string) =>
    runFlags([...referenceCase(name).flags, ...flags.split(' ')], { entry, numSteps: NUM_STEPS });
  beforeAll(async () => {
    entry = isLong ? await buildCommand() : '';
    single = await run('cosine-fp32', SINGLE);
  }, COLD_MS);

  it.each(isLong ? [...CELLS, ...LONG_CELLS] : CELLS)(
    '%s %s',
    { timeout: COLD_MS },
    async (name, flags) => {
      const isSingle = flags === SINGLE && name === 'cosine-fp32';
      const record = isSingle ? single : await run(name, flags);
      expectReference(record, name, NUM_STEPS);
      const devices = flags.match(/--device (\S+)/)![1]!.split(',');
      const used = record.ready.map(({ device }) => device);
      expect(used).toEqual(devices.length === 1 ? used.map(() => devices[0]) : devices);
      if (name === 'cosine-fp32' && devices.join() === 'webgpu') {
        expect(worstRatio(losses(single), losses(record))).toBeLessThan(SHARDED_TOLERANCE);
      }
    },
  );
});
