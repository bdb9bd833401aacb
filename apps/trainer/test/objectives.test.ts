// What each task's objective computes of a batch: the sum over its parts, however they come, and
// its gradients, scaled.

import { createMemoryGroup } from '@shardweave/collectives';
import { makeModel, resolveGpt2Config } from '@shardweave/nn';
import { EmbeddingModel, Encoder, SequenceClassifier } from '@shardweave/nn/embedding';
import { Device, mul, sum, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { afterAll, describe, expect, it } from 'vitest';
import { SMALL } from '../../../packages/onnx/test/support/small-encoder.ts';
import { NO_TARGET } from '../src/data/rows.js';
import type { OpenedOwnModel } from '../src/own-model/open-own-model.js';
import { ClassObjective } from '../src/rank/objectives/classes.js';
import { LanguageObjective } from '../src/rank/objectives/language.js';
import type { Objective, TaskModule } from '../src/rank/objectives/objective.js';
import { OwnObjective } from '../src/rank/objectives/own.js';
import { PairObjective } from '../src/rank/objectives/pairs.js';
import type { ClassHead } from '../src/task/task-head.js';

const device = new Device(createReferenceBackend());
afterAll(() => device.dispose());
const [group] = createMemoryGroup(1);
const SEQ = 6;
const CONFIG = {
  ...{ ...SMALL, hidden_size: 8, num_attention_heads: 2, intermediate_size: 8 },
  ...{ hidden_dropout_prob: 0, attention_probs_dropout_prob: 0 },
};
const encoder = () => new Encoder(device, { ...CONFIG, num_hidden_layers: 1 }, { seed: 1 }).eval();
const textOf = (...ids: number[]) => ({ ids, tokenTypes: ids.map((_, i) => Number(i > 1)) });
const TEXTS = [textOf(1, 2, 3), textOf(4), textOf(5, 6, 7, 8), textOf(9, 3), textOf(2, 2, 1)];

interface Example {
  readonly texts: readonly ReturnType<typeof textOf>[];
  readonly labels: readonly number[];
}
const batchOf = (examples: readonly Example[]) => ({ examples, firstRow: 0 });

function classes(kind: 'classify' | 'rerank', head: Partial<ClassHead>, hasTypes = false) {
  const labels = kind === 'rerank' ? ['yes'] : ['a', 'b', 'c'];
  const problemType = 'multi_label_classification';
  const whole: ClassHead = { kind, labels, problemType, ...head };
  const of = { labels, problemType: whole.problemType };
  const module = new SequenceClassifier(encoder(), { ...of, seed: 2 }).eval() as TaskModule;
  return {
    module,
    objective: new ClassObjective({ device, module, config: { seq: SEQ } }, whole, hasTypes),
  };
}

function pairs(config: object = {}) {
  const module = new EmbeddingModel(encoder(), { pooling: 'mean', normalize: true }) as TaskModule;
  const own = { temperature: 0.5, symmetric: false, chunkSize: 100, seq: SEQ, ...config };
  const options = { device, module, config: own, groups: { reduce: group } };
  return { module, objective: new PairObjective(options as never) };
}

async function lossOf(objective: Objective, batch: unknown): Promise<number> {
  return device.noGrad(() => device.scope(async () => (await objective.loss(batch)).item()));
}

/** The loss of backward, and the gradients that it has left. */
async function backwardOf(
  { objective, module }: { objective: Objective; module: TaskModule },
  batch: unknown,
  scale: number,
) {
  const phases: string[] = [];
  const onPhase = (phase: string) => void phases.push(phase);
  const loss = await objective.backward(batch, { scale, onPhase });
  // Chunks go forward and backward in turn, which is one phase.
  expect([phases[0], phases[1] ?? 'backward', loss.requiresGrad]).toEqual([
    'forward',
    'backward',
    false,
  ]);
  const gradients: number[] = [];
  for (const parameter of module.parameters()) {
    const { grad } = parameter;
    gradients.push(...(grad === undefined ? [] : ((await grad.toArray()) as Float32Array)));
    parameter.grad = undefined;
  }
  return { loss: await loss.item(), gradients };
}

/** Compares numbers by the largest of them. */
function expectNear(found: readonly number[], wanted: readonly number[]): void {
  const most = (values: readonly number[]) =>
    values.reduce((all, x) => Math.max(all, Math.abs(x)), 0);
  expect(found).toHaveLength(wanted.length);
  expect(most(found.map((value, i) => value - wanted[i]!))).toBeLessThan(1e-5 * most(wanted));
}

const ONE: Example[] = TEXTS.map((text, i) => ({ texts: [text], labels: [i % 3] }));
const MANY: Example[] = TEXTS.map((text, i) => ({
  texts: [text],
  labels: [[], [0], [0, 2]][i % 3]!,
}));
const RANKED: Example[] = [
  { texts: TEXTS.slice(0, 2), labels: [1, 0] },
  { texts: TEXTS.slice(2), labels: [0, 1, 0] },
];
const SCORED: Example[] = [
  { texts: TEXTS.slice(0, 2), labels: [0.5] },
  { texts: TEXTS.slice(2, 4), labels: [-1] },
  { texts: TEXTS.slice(3, 5), labels: [0] },
];
const single = 'single_label_classification';
const CASES: [string, () => ReturnType<typeof classes | typeof pairs>, Example[]][] = [
  ['one label', () => classes('classify', { problemType: single }), ONE],
  ['weighted classes', () => classes('classify', { problemType: single, weights: [4, 1, 2] }), ONE],
  ['several labels', () => classes('classify', {}), MANY],
  ['weighted labels', () => classes('classify', { weights: [4, 1, 2] }), MANY],
  ['ranks', () => classes('rerank', {}, true), RANKED],
  ['scores', () => pairs(), SCORED],
];

describe('the loss of examples', () => {
  it.each(CASES)(
    'examples with %s have the sum over them, and so of their gradients',
    async (_, make, all) => {
      const made = make();
      const whole = await backwardOf(made, batchOf(all), 1);
      const parts: Awaited<ReturnType<typeof backwardOf>>[] = [];
      for (const example of all) {
        parts.push(await backwardOf(made, batchOf([example]), 1));
      }
      const total = parts.reduce((sum, { loss }) => sum + loss, 0);
      expect(whole.loss).toBeCloseTo(total, 4);
      expect(await lossOf(made.objective, batchOf(all))).toBeCloseTo(total, 4);
      const summed = whole.gradients.map((_, i) =>
        parts.reduce((sum, part) => sum + part.gradients[i]!, 0),
      );
      expectNear(whole.gradients, summed);
      const scaled = await backwardOf(made, batchOf(all), 8);
      expect(scaled.loss).toBe(whole.loss);
      expectNear(
        scaled.gradients,
        whole.gradients.map((value) => 8 * value),
      );
    },
  );

  it.each(CASES.slice(0, 5))(
    'no example with %s has a loss of 0, and gradients of 0',
    async (_, make) => {
      const { loss, gradients } = await backwardOf(make(), batchOf([]), 1);
      expect([loss, gradients.length > 0, gradients.every((value) => value === 0)]).toEqual([
        0,
        true,
        true,
      ]);
    },
  );

  it.each([
    ['classify', MANY, 3],
    ['rerank', RANKED, 1],
  ] as const)('shows each example of %s to whoever judges', async (kind, examples, width) => {
    const { objective } = classes(kind, {});
    const seen: [number[], unknown, number][] = [];
    const judge = (judged: { logits: Float32Array; labels: unknown }, i: number) =>
      void seen.push([[...judged.logits], judged.labels, i]);
    await device.noGrad(() => objective.loss(batchOf(examples) as never, judge as never));
    expect(seen.map(([logits, labels, i]) => [logits.length, labels, i])).toEqual(
      examples.map(({ texts, labels }, i) => [texts.length * width, labels, i]),
    );
    const { length } = seen;
    await objective.loss(batchOf([]) as never, judge as never);
    expect(seen).toHaveLength(length);
    for (const [i, example] of examples.entries()) {
      await objective.loss(batchOf([example]) as never, judge as never);
      expectNear(seen.at(-1)![0], seen[i]![0]);
    }
  });

  it('weighs classes, or positive labels', async () => {
    const of = async (head: Partial<ClassHead>, example: Example) =>
      lossOf(classes('classify', head).objective, batchOf([example]));
    const [first, , third] = MANY as [Example, Example, Example];
    const weights = [4, 4, 4];
    expect(await of({ weights }, first)).toBeCloseTo(await of({}, first), 5);
    expect(await of({ weights }, third)).toBeGreaterThan(1.5 * (await of({}, third)));
    const plain = await of({ problemType: single }, ONE[1]!);
    expect(await of({ problemType: single, weights: [1, 4, 1] }, ONE[1]!)).toBeCloseTo(
      4 * plain,
      4,
    );
  });

  it('tells the texts of a pair apart only where the model does', async () => {
    const of = (hasTypes: boolean) =>
      lossOf(classes('rerank', {}, hasTypes).objective, batchOf(RANKED));
    expect(await of(true)).not.toBe(await of(false));
  });
});

describe('the loss of pairs', () => {
  const NEGATIVE: Example[] = [
    { texts: TEXTS.slice(0, 3), labels: [] },
    { texts: TEXTS.slice(2, 5), labels: [] },
  ];
  it.each([
    [{}, RANKED.map(({ texts }) => ({ texts: texts.slice(0, 2), labels: [] }))],
    [{ symmetric: true }, NEGATIVE],
    [{ matryoshkaDims: [8, 4], temperature: 0.1 }, NEGATIVE],
  ])('pairs with %j have the same in chunks of any size', async (config, examples) => {
    const whole = await backwardOf(pairs(config), batchOf(examples), 2);
    for (const chunkSize of [2, 5]) {
      const made = pairs({ ...config, chunkSize });
      const { loss, gradients } = await backwardOf(made, batchOf(examples), 2);
      expect(loss).toBeCloseTo(whole.loss, 4);
      expect(await lossOf(made.objective, batchOf(examples))).toBeCloseTo(whole.loss, 4);
      expectNear(gradients, whole.gradients);
    }
    const other = await backwardOf(pairs(), batchOf(examples), 2);
    expect(other.loss === whole.loss).toBe(Object.keys(config).length === 0);
  });
});

describe('the loss of rows', () => {
  const GPT = resolveGpt2Config({
    ...{ vocab_size: 12, n_positions: SEQ, n_embd: 8, n_layer: 1, n_head: 2 },
    initializer_range: 0.4,
  });
  const rowsOf = (rows: number, more: object = {}) => {
    const all = (of: (i: number) => number) =>
      Uint32Array.from({ length: rows * SEQ }, (_, i) => of(i));
    const targets = all((i) => (i % 5 === 4 ? NO_TARGET : (i * 7) % 12));
    return { rows, firstRow: 0, tokens: all((i) => (i * 5) % 12), targets, ...more };
  };
  const language = () => {
    const module = makeModel(device, GPT, { seed: 2 }).eval() as TaskModule;
    return { module, objective: new LanguageObjective({ device, module, config: { seq: SEQ } }) };
  };

  it('counts each target by its weight, and apart by segments and positions', async () => {
    const made = language();
    const weightsOf = (of: (i: number) => number) => ({
      weights: Float32Array.from({ length: 2 * SEQ }, (_, i) => of(i)),
    });
    const plain = await lossOf(made.objective, rowsOf(2));
    const even = await lossOf(
      made.objective,
      rowsOf(
        2,
        weightsOf((i) => Number(i % 2 === 0)),
      ),
    );
    const odd = await lossOf(
      made.objective,
      rowsOf(
        2,
        weightsOf((i) => Number(i % 2 === 1)),
      ),
    );
    expect(even + odd).toBeCloseTo(plain, 4);
    expect(even).toBeGreaterThan(0);
    expect(
      await lossOf(
        made.objective,
        rowsOf(
          2,
          weightsOf(() => 2),
        ),
      ),
    ).toBeCloseTo(2 * plain, 4);
    const segments = Uint32Array.from({ length: 2 * SEQ }, (_, i) => i % SEQ);
    const positions = new Uint32Array(2 * SEQ);
    const [apart, moved] = [rowsOf(2, { segments }), rowsOf(2, { positions })];
    expect(await lossOf(made.objective, apart)).not.toBe(plain);
    expect(await lossOf(made.objective, moved)).not.toBe(plain);
  });

  /** A model of people's own that is the first weight times the sum of its batch. */
  function ownOf(more: Partial<OpenedOwnModel> = {}) {
    const { module } = language();
    const [weight] = module.parameters() as [Tensor];
    const asked: unknown[] = [];
    const rowSet = (name: string) => ({
      batch: async (numbers: readonly number[]) => {
        asked.push([name, ...numbers]);
        return numbers.reduce((all, number) => all + number + 1, 0);
      },
    });
    const lossOfSum = (_: unknown, batch: number | { targets: Tensor }) =>
      typeof batch === 'number' ? mul(sum(mul(weight, weight)), batch) : sum(mul(weight, weight));
    const own = {
      path: 'x.mjs',
      loss: lossOfSum,
      rows: rowSet('rows'),
      validRows: rowSet('valid'),
    };
    const opened = { ...own, ...more } as unknown as OpenedOwnModel;
    const objective = new OwnObjective({ device, module, config: { seq: SEQ } }, opened);
    return { module, objective, asked };
  }

  it('is what a module says of its rows, which are others for evaluations', async () => {
    const made = ownOf();
    const unit = await lossOf(made.objective, { numbers: [0], firstRow: 0 });
    expect(await lossOf(made.objective, { numbers: [1, 2], firstRow: 0 })).toBeCloseTo(5 * unit, 3);
    expect(await lossOf(made.objective, { numbers: [4], isValid: true })).toBeCloseTo(5 * unit, 3);
    expect(await lossOf(made.objective, { numbers: [] })).toBe(0);
    expect(made.asked).toEqual([
      ['rows', 0],
      ['rows', 1, 2],
      ['valid', 4],
      ['rows', 0],
    ]);
    const halves = await made.objective.halvesLoss({ numbers: [0, 1, 2], firstRow: 3 } as never);
    expect(await halves.item()).toBeCloseTo(6 * unit, 3);
    expect(made.asked.slice(4)).toEqual([
      ['rows', 0, 1],
      ['rows', 2],
    ]);
    const whole = await backwardOf(made, { numbers: [1] }, 3);
    const none = await backwardOf(made, { numbers: [] }, 3);
    expect(whole.gradients.some((value) => value !== 0)).toBe(true);
    expect(none.gradients.every((value) => value === 0)).toBe(true);
    expect([
      (await lossOf(made.objective, rowsOf(2))) > 0,
      await lossOf(made.objective, rowsOf(0)),
    ]).toEqual([...[true, 0]]);
  });

  it.each([
    ['no tensor', () => 3, 'got 3'],
    ['losses that are not added up', () => device.zeros([2]), 'got f32 [2]. End it with sum'],
    ['whole numbers', () => device.zeros([1], { dtype: 'i32' }), 'got i32 [1]'],
    ['no graph', () => device.zeros([1]), 'got one without a graph'],
  ])('a module that returns %s is told', async (_, loss, message) => {
    const { objective } = ownOf({ loss: loss as never });
    const backward = objective.backward({ numbers: [0] } as never, { scale: 1, onPhase: () => {} });
    await expect(backward).rejects.toThrow(message);
  });
});
