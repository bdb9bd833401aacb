// The first 20 losses against PyTorch's on WebGPU: chosen cells, in one process and in several, and
// jobs whose ranks run on both devices.

import { beforeAll, describe, expect, it } from 'vitest';
import { buildCommand } from './fixtures/build-command.js';
import { expectReference, losses } from './fixtures/expect-reference.js';
import { type RunRecord, referenceCase, runFlags, worstRatio } from './fixtures/run-flags.js';
import { whyNoWebGpu } from './fixtures/webgpu-adapter.js';

const SINGLE = '--strategy single --device webgpu';
const CELLS = [
  ['cosine-fp32', SINGLE],
  ['cosine-bf16', SINGLE],
  ['cosine-fp16', SINGLE],
  ['cosine-fp32', '--ranks 2 --device webgpu'],
  ['cosine-bf16', '--ranks 3 --no-reshard --device webgpu'],
  ['cosine-fp16', '--ranks 4 --fp32-reduce --device webgpu'],
  ['cosine-fp32', '--ranks 3 --checkpoint-activations --device webgpu'],
  ['accum-bf16', '--ranks 2 --no-sync --device webgpu'],
  ['cosine-fp32', '--ranks 2 --transport ws --device webgpu'],
  ['cosine-fp32', '--strategy ddp --ranks 2 --device webgpu'],
  ['cosine-fp32', '--ranks 2 --device cpu,webgpu'],
  ['cosine-bf16', '--ranks 3 --checkpoint-activations --device webgpu,cpu,cpu'],
  ['cosine-fp16', '--ranks 2 --transport ws --device webgpu,cpu'],
] as const;

/** Sharded and single on one device differ by the order of sums alone. */
const SHARDED_TOLERANCE = 2e-6;
/** A driver that has compiled nothing yet takes a quarter of a second a pipeline. */
const COLD_MS = 480_000;

const reason = await whyNoWebGpu();

describe.skipIf(reason !== undefined)(`webgpu${reason === undefined ? '' : ` (${reason})`}`, () => {
  let entry: string;
  let single: RunRecord;
  const run = (name: string, flags: string) =>
    runFlags([...referenceCase(name).flags, ...flags.split(' ')], { entry });
  beforeAll(async () => {
    entry = await buildCommand('webgpu-losses');
    single = await run('cosine-fp32', SINGLE);
  }, COLD_MS);

  it.each(CELLS)('%s %s', { timeout: COLD_MS }, async (name, flags) => {
    const record = flags === SINGLE && name === 'cosine-fp32' ? single : await run(name, flags);
    expectReference(record, name);
    const devices = flags.match(/--device (\S+)/)![1]!.split(',');
    const used = record.ready.map(({ device }) => device);
    expect(used).toEqual(devices.length === 1 ? used.map(() => devices[0]) : devices);
    if (name === 'cosine-fp32' && devices.join() === 'webgpu') {
      expect(worstRatio(losses(record), losses(single))).toBeLessThan(SHARDED_TOLERANCE);
    }
  });
});
