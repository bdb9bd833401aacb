// The loss on held-out data is one mean over its targets, however a run is sharded, and does not
// affect training.

import { readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { createMemoryGroup } from '@shardweave/collectives';
import { Linear, makeModel } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { NO_TARGET } from '../src/data/rows.js';
import type { OnJudged } from '../src/figures/figures.js';
import { rankingFigures } from '../src/figures/ranking-figures.js';
import type { RankEvent } from '../src/rank/events.js';
import { type EvaluationOptions, evaluate } from '../src/rank/step/evaluation.js';
import { languageConfig } from '../src/task/text-config.js';
import { configOf, jsonlFile, openFlags } from './support/jsonl-data.js';
import { lettersDirectory } from './support/letters-tokenizer.js';
import { ROOT, runFlags, worstRatio } from './support/run-flags.js';

const TRAIN = Array.from({ length: 12 }, (_, i) => ({
  prompt: `${i} plus `,
  completion: `${i + 1}`,
}));
const VALID_LINES = Array.from({ length: 6 }, (_, i) => ({
  prompt: 'and '.repeat(i + 1),
  completion: `so ${i}`,
}));
const { file, model } = jsonlFile(TRAIN);
const valid = jsonlFile(VALID_LINES).file;
const RUN = `--device cpu --model ${model} --data ${file} --valid ${valid} --seq 16 --batch 4 --steps 4 --lr 0.01 --eval-every 2`;

const run = (flags: string) => runFlags(flags.split(' '));
const losses = ({ steps }: Awaited<ReturnType<typeof run>>) => steps.map(({ loss }) => loss);
const valids = ({ steps }: Awaited<ReturnType<typeof run>>) =>
  steps.map(({ validLoss }) => validLoss);

describe('evaluation', () => {
  it('is given up on all ranks where the run is asked to end', async () => {
    const out = newFolder();
    const wrapUp = new AbortController();
    const flags = `${RUN} --eval-every 1 --ranks 2 --out ${out}/run --save-every 100`;
    const asked = await runFlags(flags.split(' '), {
      wrapUp: wrapUp.signal,
      // A rank tells its status behind a step, and before the evaluation that follows.
      onEvent: (event) => event.type === 'rank' && event.status.step === 2 && wrapUp.abort(),
    });
    expect(valids(asked)).toEqual([expect.any(Number), undefined]);
    expect(asked.stopped).toBe(join(out, 'run/saves/step-000002'));
  });

  it('is the mean over all targets that count, by hand', async () => {
    const flags = `${RUN} --strategy single --lr 0`;
    const [, found] = valids(await run(flags));
    // Evaluation has no dropout.
    expect(valids(await run(`${flags} --dropout 0.3`))[1]).toBe(found);
    await using data = await openFlags(flags);
    const config = await configOf(flags);
    const device = new Device(createReferenceBackend());
    const gpt = makeModel(device, languageConfig(config.modelConfig), { seed: config.seed });
    let sum = 0;
    let number = 0;
    // All steps count, the last of which is not full.
    const steps = data.valid!;
    expect(steps.numSteps).toBe(3);
    for (let step = 0; step < steps.numSteps; step++) {
      const { rows, tokens, targets, segments, positions } = await steps.microBatch(step, 0, 0);
      expect(rows).toBe([4, 4, 1][step]);
      const losses = await device.scope(async () => {
        const on = (values: Uint32Array) => device.tensor(values, [rows, 16]);
        const options = {
          targets: on(targets),
          segments: on(segments!),
          positions: on(positions!),
        };
        return (await gpt.call(on(tokens), options)).toArray();
      });
      sum += [...(losses as Float32Array)].reduce((all, loss) => all + loss, 0);
      number += targets.filter((target) => target !== NO_TARGET).length;
    }
    device.dispose();
    expect(number).toBe(
      VALID_LINES.reduce((all, { completion }) => all + completion.length + 1, 0),
    );
    expect(Math.abs(found! / (sum / number) - 1)).toBeLessThan(2e-6);
  });

  it('comes every so many steps and in the end, and is equal for every way to shard', async () => {
    const single = await run(`${RUN} --steps 5 --strategy single`);
    expect(valids(single).map((loss) => loss !== undefined)).toEqual([
      false,
      true,
      false,
      true,
      true,
    ]);
    const of = (record: typeof single) => valids(record).filter((loss) => loss !== undefined);
    for (const flags of [
      '--strategy ddp --ranks 3',
      '--strategy fsdp --ranks 2 --no-reshard',
      '--strategy fsdp --ranks 5 --grad-accum 2',
      '--strategy offload --slices 2 --micro-batches 2',
      '--strategy single --checkpoint-activations',
    ]) {
      const found = of(await run(`${RUN} --steps 5 ${flags}`));
      expect(worstRatio(found, of(single)), flags).toBeLessThan(2e-6);
    }
  });

  it('looks at the first batches alone where there are more than --eval-batches', async () => {
    const seen: [number, number][] = [];
    const onEvent = (event: RankEvent) => {
      if (event.type === 'evaluating') {
        seen.push([event.done, event.total]);
      }
    };
    const flags = `${RUN} --strategy fsdp --ranks 2 --lr 0`;
    const first = await runFlags(`${flags} --eval-batches 1`.split(' '), { onEvent });
    // Each of the two evaluations has one of three batches.
    expect(seen).toEqual([
      [1, 1],
      [1, 1],
    ]);
    const all = await run(flags);
    expect(valids(await run(`${flags} --eval-batches 3`))).toEqual(valids(all));
    expect(valids(first)[1]).not.toBe(valids(all)[1]);
    expect((await configOf(RUN)).evalBatches).toBe(100);
    await expect(configOf(`--model ${model} --data ${file} --eval-batches 2`)).rejects.toThrow(
      /^--eval-batches is for --valid or --valid-fraction, which is not given/,
    );
  });

  it('judges a reranker by all queries, in however many steps they come', async () => {
    const device = new Device(createReferenceBackend());
    const [group] = createMemoryGroup(1);
    const above = [0, 3, 1, 2, 0]; // so many documents before each query's own, the first
    const loss = async ({ step }: { readonly step: number }, onJudged?: OnJudged) => {
      for (const [i, count] of above.slice(2 * step, 2 * step + 2).entries()) {
        onJudged!({ logits: Float32Array.of(0, ...Array(count).fill(1)), labels: [1, 0] }, i);
      }
      return device.zeros([1]);
    };
    const found = await evaluate({
      config: { head: { kind: 'rerank', labels: ['yes'] }, batch: 2, seq: 8, chunkSize: 8 },
      rank: 0,
      device,
      group,
      strategy: {
        module: new Linear(device, { inFeatures: 1, outFeatures: 1 }),
        objective: { loss },
      },
      data: {
        count: above.length,
        numSteps: 3,
        numMicroSteps: 1,
        numTargets: async () => 2,
        microBatch: async (step: number) => ({ firstRow: 0, step }),
      },
    } as unknown as EvaluationOptions);
    const { values } = rankingFigures(above.map((count) => [count + 1]));
    expect(found!.figures!.values).toEqual(values);
    device.dispose();
  });

  it('leaves training as it was: losses, dropout and what is counted of messages', async () => {
    for (const flags of ['--strategy fsdp --ranks 2', '--strategy offload --slices 2']) {
      const watched = await run(`${RUN} --dropout 0.3 ${flags}`);
      const alone = await run(
        `${RUN.replace(/--valid \S+ /, '').replace(/ --eval-every 2/, '')} --dropout 0.3 ${flags}`,
      );
      expect(losses(watched)).toEqual(losses(alone));
      expect(valids(alone).filter((loss) => loss !== undefined)).toEqual([]);
      // Messages of the evaluation are not in the counts. What it gathered last, training need not
      // gather again.
      for (const [rank, { bytesSent, allReduces }] of watched.reports.entries()) {
        expect(allReduces).toBe(alone.reports[rank]!.allReduces);
        expect(bytesSent).toBeLessThanOrEqual(alone.reports[rank]!.bytesSent);
      }
    }
  });

  it('takes each target of a text once, and the end of the text with --valid-fraction', async () => {
    const text = `${ROOT}tooling/reference/data/tiny/text.txt`;
    const flags = `--model nano --data ${text} --valid-fraction 0.1 --seq 64 --batch 3 --ranks 1`;
    await using data = await openFlags(flags);
    const [train, apart] = [data.train, data.valid!];
    const bytes = [...readFileSync(text)];
    expect(train.size.tokens + apart.size.tokens).toBe(bytes.length);
    expect(apart.size.tokens).toBe(Math.round(bytes.length / 10));
    const tokens: number[] = [];
    const targets: number[] = [];
    for (let step = 0; step < apart.numSteps; step++) {
      const batch = await apart.microBatch(step, 0, 0);
      expect(batch.rows).toBe([3, 3, 3, 1][step]);
      const counted = [...batch.targets].filter((target) => target !== NO_TARGET);
      expect(await apart.numTargets(step)).toBe(counted.length);
      expect(batch.targets.length).toBe(batch.rows * 64); // The last row is padded.
      tokens.push(...batch.tokens.subarray(0, counted.length));
      targets.push(...counted);
    }
    const end = bytes.slice(train.size.tokens);
    expect(tokens).toEqual(end.slice(0, -1));
    expect(targets).toEqual(end.slice(1));
  });
});

it('the text in the end is left out where it can not be made, and the run is done', async () => {
  const directory = lettersDirectory();
  const flags = `--device cpu --model ${directory} --data ${file} --ranks 2 --seq 16 --batch 4 --steps 2`;
  const { text, warnings, reports } = await runFlags(flags.split(' '), {
    isQuiet: false,
    onEvent: (event) => {
      if (event.type === 'doing') {
        rmSync(join(directory, 'tokenizer.json'), { force: true });
      }
    },
  });
  expect(text).toBeUndefined();
  expect(warnings).toEqual([
    expect.stringMatching(/^The text at the end is left out: .*tokenizer/),
  ]);
  expect(reports).toHaveLength(2);
  rmSync(directory, { recursive: true });
});

it('the text in the end stops where the model ends one', async () => {
  // There is nothing to learn but an 'a' and the end.
  const ends = jsonlFile([{ prompt: '\n', completion: 'a' }, { text: '\na' }]);
  const flags = `--device cpu --model ${ends.model} --data ${ends.file} --strategy single --seq 16 --batch 2 --steps 40 --lr 0.05 --schedule constant`;
  const { text } = await runFlags(flags.split(' '), { isQuiet: false });
  expect(text).toBe('a');
});
