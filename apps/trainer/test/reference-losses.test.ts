// The first losses are compared with PyTorch's (tooling/reference), on the cpu device over memory.
// Every number of ranks, resharding, checkpointing and precision runs, and with SHARDWEAVE_LONG=1
// every combination, for all steps. Further numbers of ranks and of slices are there, too. Pairs of
// them run in packages/fsdp, against one process.

import { beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { expectReference, losses } from './support/expect-reference.js';
import {
  type RunRecord,
  referenceCase,
  runFlags,
  shortCase,
  worstRatio,
} from './support/run-flags.js';

/** Sharded and single runs differ only by the order of sums. */
const SHARDED_TOLERANCE = 2e-6;
const PRECISIONS = ['fp32', 'bf16', 'fp16'] as const;
const RESHARDING = ['--reshard', '--no-reshard'] as const;
const CHECKPOINTING = ['', '--checkpoint-activations'] as const;

/** For each precision, the ranks of the short run, which of RESHARDING and of CHECKPOINTING. */
const FEW: Readonly<Record<(typeof PRECISIONS)[number], readonly [number, number, number]>> = {
  fp32: [2, 0, 0],
  bf16: [3, 1, 1],
  fp16: [4, 0, 1],
};
const isLong = process.env.SHARDWEAVE_LONG === '1';
/**
 * One rank takes all steps that PyTorch took. What several ranks and slices change shows in the
 * first: gathers, reductions, clipping, the optimizer's state and the schedule.
 */
const FEW_STEPS = isLong ? 20 : 5;
const CELLS = PRECISIONS.flatMap((precision) =>
  [2, 3, 4].flatMap((ranks) =>
    RESHARDING.flatMap((reshard, r) =>
      CHECKPOINTING.flatMap((checkpoint, c) => {
        const flags = `--ranks ${ranks} ${reshard} ${checkpoint}`.trim();
        const isOfFew = FEW[precision].join() === [ranks, r, c].join();
        return isLong || isOfFew ? [{ precision, ranks, flags }] : [];
      }),
    ),
  ),
);

const run = (name: string, flags: readonly string[], numSteps?: number) =>
  runFlags([...referenceCase(name).flags, '--device', 'cpu', ...flags], { numSteps });
const runFew = (name: string, flags: readonly string[]) => run(name, flags, FEW_STEPS);
/** Runs few steps to their end, for what is counted over a whole run. */
const runShort = (name: string, flags: readonly string[]) =>
  runFlags([...shortCase(name), '--device', 'cpu', ...flags]);
const SHORT_STEPS = 6;
/** A short run has the rates of the whole one in its warm-up of four steps. */
const expectShortReference = (record: RunRecord, name: string) =>
  expectReference({ ...record, steps: record.steps.slice(0, 5) }, name, 5);
const lossesAndNorms = ({ steps }: RunRecord) =>
  steps.map(({ loss, gradNorm }) => [loss, gradNorm]);
let single: RunRecord;
beforeAll(async () => {
  single = await run('cosine-fp32', ['--strategy', 'single']);
});

/** Expects the losses of one rank in the steps that a run took. */
function expectSingle(record: RunRecord): void {
  const expected = losses(single).slice(0, record.steps.length);
  expect(worstRatio(losses(record), expected)).toBeLessThan(SHARDED_TOLERANCE);
}

describe('one rank', () => {
  it('fp32 has the losses of PyTorch', () => expectReference(single, 'cosine-fp32'));

  // In the short run ddp and offload take the micro-steps.
  const names = ['cosine-bf16', 'cosine-fp16', 'plain-fp32', 'accum-fp32'];
  it.each(names.slice(0, isLong ? 4 : 3))('%s', async (name) => {
    expectReference(await run(name, ['--strategy', 'single']), name);
  });
});

describe('ddp', () => {
  const inDdp = (flags: string) => ['--strategy', 'ddp', ...flags.split(' ')];

  it.each([
    '--ranks 3',
    ...(isLong ? ['--ranks 2', '--ranks 2 --checkpoint-activations', '--ranks 4'] : []),
  ])('%s', async (flags) => {
    const record = await runFew('cosine-fp32', inDdp(flags));
    expectReference(record, 'cosine-fp32', FEW_STEPS);
    expectSingle(record);
  });

  it("two micro-steps have the reference's losses, reduced each or once", async () => {
    const each = await runShort('accum-fp32', inDdp('--ranks 3'));
    const once = await runShort('accum-fp32', inDdp('--ranks 3 --no-sync'));
    expectShortReference(each, 'accum-fp32');
    expectShortReference(once, 'accum-fp32');
    // The all-reduces of the losses are left out.
    const buckets = (record: RunRecord) => record.reports[0]!.allReduces - SHORT_STEPS;
    expect(buckets(each)).toBe(2 * buckets(once));
  });

  const halves = [
    ['cosine-fp16', '--ranks 2 --fp32-reduce --checkpoint-activations'],
    ['cosine-bf16', '--ranks 3 --no-reshard'],
  ] as const;
  it.each(isLong ? halves : halves.slice(0, 1))(
    '%s %s has those of PyTorch, and of fsdp bit for bit',
    async (name, flags) => {
      const record = await runShort(name, inDdp(flags));
      expectShortReference(record, name);
      const sharded = await runShort(name, flags.split(' '));
      expect(lossesAndNorms(record)).toEqual(lossesAndNorms(sharded));
      const [own, shard] = [record, sharded].map(({ reports }) => reports[0]!);
      expect(own!.allGathers).toBe(1); // the ranks' agreement on what is trained, once
      expect(own!.peakBytes.optimizer).toBeGreaterThan(1.9 * shard!.peakBytes.optimizer);
    },
  );

  // In the short run fsdp does: the steps are skipped by what all strategies share.
  it.runIf(isLong)('fp16 that overflows skips the steps that PyTorch skips', async () => {
    const record = await runFew('overflow-fp16', inDdp('--ranks 2'));
    expect(record.steps.filter((step) => step.skipped)).toHaveLength(2);
    expectReference(record, 'overflow-fp16', FEW_STEPS);
  });
});

describe('offload', () => {
  const offload = (name: string, flags: string) =>
    runFew(name, ['--strategy', 'offload', ...flags.split(' ')]);

  it.each([
    '--slices 3',
    '--device-budget 5000000 --micro-batches 2 --checkpoint-activations',
    ...(isLong ? ['--slices 9 --checkpoint-activations', '--device-budget 6000000'] : []),
  ])('%s', async (flags) => {
    const record = await offload('cosine-fp32', flags);
    expectReference(record, 'cosine-fp32', FEW_STEPS);
    expect(record.peakBytes).toBeLessThan(single.peakBytes);
  });

  it("micro-batches and micro-steps on disk have the reference's losses", async () => {
    const directory = newFolder();
    const flags = `--micro-batches 2 --offload-dir ${directory}`;
    expectReference(await offload('accum-fp32', flags), 'accum-fp32', FEW_STEPS);
  });

  it.each(['cosine-fp16', ...(isLong ? ['cosine-bf16', 'overflow-fp16'] : [])])(
    '%s',
    async (name) => {
      expectReference(await offload(name, '--slices 2'), name, FEW_STEPS);
    },
  );
});

describe('fsdp', () => {
  it.each(CELLS.map((cell) => [`${cell.precision} ${cell.flags}`, cell] as const))(
    '%s',
    async (_, cell) => {
      const { precision, ranks, flags } = cell;
      const record = await runFew(`cosine-${precision}`, flags.split(' '));
      expectReference(record, `cosine-${precision}`, FEW_STEPS);
      if (precision === 'fp32') {
        expectSingle(record);
      }
      expect(record.ready).toHaveLength(ranks);
    },
  );

  it('shards at rest in host memory or on disk change no loss', async () => {
    const resident = await runShort('cosine-fp32', ['--ranks', '2']);
    const directory = newFolder();
    for (const flags of [['--cpu-offload'], ['--offload-dir', directory]]) {
      const record = await runShort('cosine-fp32', ['--ranks', '2', ...flags]);
      expect(losses(record)).toEqual(losses(resident));
      const optimizer = (of: RunRecord) => of.reports[0]!.peakBytes.optimizer;
      expect(optimizer(record)).toBeLessThan(optimizer(resident));
    }
  });

  it.each(isLong ? PRECISIONS : [])('%s with two micro-steps, reduced each', async (precision) => {
    const name = `accum-${precision}`;
    expectReference(await runFew(name, ['--ranks', '3']), name, FEW_STEPS);
  });

  it.each(isLong ? PRECISIONS : [])('%s with two micro-steps, reduced once', async (precision) => {
    const name = `accum-${precision}`;
    expectReference(await runFew(name, ['--ranks', '3', '--no-sync']), name, FEW_STEPS);
  });

  it("two micro-steps have the reference's losses, reduced each or once", async () => {
    const name = 'accum-bf16';
    const each = await runShort(name, ['--ranks', '3']);
    const once = await runShort(name, ['--ranks', '3', '--no-sync']);
    expectShortReference(each, name);
    expectShortReference(once, name);
    const reduceScatters = (record: RunRecord) => record.reports[0]!.reduceScatters;
    expect(reduceScatters(each)).toBe(2 * reduceScatters(once));
  });

  // The short run has ddp's with gradients reduced in f32, bit for bit.
  it.each(isLong ? (['bf16', 'fp16'] as const) : [])(
    '%s with gradients reduced in f32',
    async (precision) => {
      const name = `cosine-${precision}`;
      const record = await runFew(name, ['--ranks', '4', '--fp32-reduce']);
      expectReference(record, name, FEW_STEPS);
    },
  );

  it.each(['--ranks 2', ...(isLong ? ['--strategy single', '--ranks 3'] : [])])(
    'fp16 that overflows skips the steps that PyTorch skips: %s',
    async (flags) => {
      const record = await runFew('overflow-fp16', flags.split(' '));
      expect(record.steps.filter((step) => step.skipped)).toHaveLength(2);
      expectReference(record, 'overflow-fp16', FEW_STEPS);
    },
  );

  it('fp16 reduced in f32 overflows on no step: the part of each rank fits', async () => {
    const record = await runFew('overflow-fp16', ['--ranks', '3', '--fp32-reduce']);
    expect(record.steps.map(({ skipped }) => skipped)).toEqual(new Array(FEW_STEPS).fill(false));
    const expected = referenceCase('overflow-fp32').losses.slice(0, FEW_STEPS);
    expect(worstRatio(losses(record), expected)).toBeLessThan(5e-3);
  });

  it('activations and gathered parameters are 16-bit in 16-bit runs', async () => {
    const full = (await runShort('plain-fp32', ['--ranks', '2'])).reports[0]!;
    const half = (await runShort('plain-bf16', ['--ranks', '2'])).reports[0]!;
    expect(half.peakBytes.gathered * 2).toBe(full.peakBytes.gathered);
    // Logits and their gradient are f32 in both. So are losses, statistics of norms and token ids.
    const logits = 2 * 6 * 32 * 256 * 4;
    const ratio = (half.peakBytes.activation - logits) / (full.peakBytes.activation - logits);
    expect(ratio).toBeLessThan(0.52);
    expect(half.peakBytes.parameter).toBe(full.peakBytes.parameter);
    // Loss and norm are f32 in both. In each step the other rank gets one number for the loss. For
    // the norm it gets one for each of 28 parameters, and 24 more where the border between ranks
    // cuts one.
    const scalars = SHORT_STEPS * 4 * (1 + 28 + 24);
    expect((half.bytesSent - scalars) * 2).toBe(full.bytesSent - scalars);
  });
});
