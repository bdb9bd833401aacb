// The loss of a step is one sum over the targets of its global batch, however its rows are divided.
// The tests have uneven rows, ranks without rows, targets that do not count or count for more,
// micro-steps, and all four strategies.

import { makeModel } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { resolveConfig } from '../src/config/resolve-config.js';
import type { Dataset, MicroBatch } from '../src/data/dataset.js';
import { NO_TARGET } from '../src/data/rows.js';
import type { RunConfig } from '../src/run-config.js';
import { languageConfig } from '../src/task/text-config.js';
import { parseFlags } from './support/parse-flags.js';
import { ROOT, worstRatio } from './support/run-flags.js';
import { type TrainedOn, trainOn } from './support/train-on.js';

const TEXT = `${ROOT}tooling/reference/data/tiny/text.txt`;
const SEQ = 8;
const RUN = `--device cpu --model nano --data ${TEXT} --seq ${SEQ} --lr 0.01`;
/** The step in which no target counts. */
const EMPTY_STEP = 2;

/**
 * Returns whether the target at `position` of a row counts in a step. Row 1 never has any that do.
 */
const counts = (step: number, row: number, position: number) =>
  step !== EMPTY_STEP && row !== 1 && (step + 5 * row + 3 * position) % 4 !== 0;
const weightOf = (row: number, position: number) => 0.5 + 0.75 * ((row + position) % 3);

/** Returns the text, in which some targets do not count and others have weights. */
function masked(text: Dataset, { batch }: RunConfig): Dataset {
  const numRows = (step: number, row: number) =>
    Array.from({ length: SEQ }, (_, t) => counts(step, row, t)).filter(Boolean).length;
  return {
    ...text,
    numTargets: async (step) =>
      Array.from({ length: batch }, (_, row) => numRows(step, row)).reduce((sum, n) => sum + n, 0),
    microBatch: async (step, rank, microStep) => {
      const rows = await text.microBatch(step, rank, microStep);
      const at = (i: number) => [rows.firstRow + Math.floor(i / SEQ), i % SEQ] as const;
      return {
        ...rows,
        targets: rows.targets.map((id, i) => (counts(step, ...at(i)) ? id : NO_TARGET)),
        weights: Float32Array.from(rows.targets, (_, i) => weightOf(...at(i))),
      };
    },
  };
}

const losses = ({ outcomes }: TrainedOn) =>
  outcomes[0]!.filter(({ isSkipped }) => !isSkipped).map(({ loss }) => loss);
const norms = ({ outcomes }: TrainedOn) =>
  outcomes[0]!.filter(({ isSkipped }) => !isSkipped).map(({ gradNorm }) => gradNorm);

describe('the loss of a step', () => {
  it('is the weighted sum over targets that count, by their number', async () => {
    const flags = `${RUN} --batch 3 --steps 1 --strategy single`;
    const config = await resolveConfig(parseFlags(flags.split(' '), () => {}));
    let batch: Promise<MicroBatch> | undefined;
    const { outcomes } = await trainOn(flags, (text, of) => {
      const data = masked(text, of);
      batch = data.microBatch(0, 0, 0);
      return data;
    });
    const rows = await batch;
    const device = new Device(createReferenceBackend());
    const model = makeModel(device, languageConfig(config.modelConfig), { seed: config.seed });
    const logits = await device.scope(async () => {
      const made = await model.call(device.tensor(rows!.tokens, [3, SEQ]));
      return made.toArray();
    });
    const vocabulary = languageConfig(config.modelConfig).vocab_size;
    let sum = 0;
    let number = 0;
    for (const [i, target] of rows!.targets.entries()) {
      if (target === NO_TARGET) {
        continue;
      }
      const row = Array.from(logits.subarray(i * vocabulary, (i + 1) * vocabulary));
      const total = row.reduce((all, x) => all + Math.exp(x), 0);
      sum += (Math.log(total) - row[target]!) * weightOf(Math.floor(i / SEQ), i % SEQ);
      number += 1;
    }
    expect(number).toBe(12);
    const [outcome] = outcomes[0]!;
    expect(outcome!.numTargets).toBe(number);
    expect(Math.abs(outcome!.loss / (sum / number) - 1)).toBeLessThan(2e-6);
    device.dispose();
  });

  it.each([
    ['7 rows, 3 steps of it', '--batch 7', 3],
    ['2 rows, less than ranks', '--batch 2', 2],
    ['5 rows in up to 3 micro-steps', '--batch 5 --grad-accum 3', 3],
  ])('hangs on no way to cut rows: %s', async (_, batch, steps) => {
    const run = (flags: string) => trainOn(`${RUN} ${batch} --steps ${steps} ${flags}`, masked);
    const single = await run('--strategy single');
    for (const flags of [
      '--strategy ddp --ranks 2',
      '--strategy ddp --ranks 3 --no-sync',
      '--strategy fsdp --ranks 1',
      '--strategy fsdp --ranks 2 --no-sync',
      '--strategy fsdp --ranks 3',
      '--strategy offload --slices 2 --micro-batches 2',
    ]) {
      const cut = await run(flags);
      expect(worstRatio(losses(cut), losses(single)), flags).toBeLessThan(2e-6);
      // Norms are compared too, since a gradient that counted twice or not at all would not change
      // the first step's loss.
      expect(worstRatio(norms(cut), norms(single)), flags).toBeLessThan(1e-5);
      for (const outcomes of cut.outcomes) {
        expect(outcomes).toEqual(cut.outcomes[0]);
      }
    }
  });

  it('has equal bits with ddp and fsdp where rows are uneven', async () => {
    const run = (flags: string) =>
      trainOn(`${RUN} --batch 7 --steps 3 --ranks 3 --clip 0.1 --grad-accum 2 ${flags}`, masked);
    expect(losses(await run('--strategy ddp'))).toEqual(losses(await run('--strategy fsdp')));
  });
});

describe('a step without a target that counts', () => {
  it.each(['single', 'ddp --ranks 3', 'fsdp --ranks 2', 'offload'])(
    'is skipped alike, without a message: %s',
    async (strategy) => {
      const flags = `${RUN} --batch 4 --strategy ${strategy} --steps ${EMPTY_STEP + 2}`;
      const { outcomes, collectives } = await trainOn(flags, masked);
      for (const own of outcomes) {
        expect(own.map(({ isSkipped }) => isSkipped)).toEqual([false, false, true, false]);
        expect(own[EMPTY_STEP]).toEqual({
          loss: Number.NaN,
          numTargets: 0,
          gradNorm: Number.NaN,
          lossScale: 1,
          isSkipped: true,
        });
        expect(own[EMPTY_STEP + 1]!.loss).toBeLessThan(own[0]!.loss);
      }
      expect(collectives[EMPTY_STEP]).toBe(0);
    },
  );
});
