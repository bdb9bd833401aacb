// The small parts of a rank: what it counts and notes, and the head and the adapters that a task
// puts on its model.

import type { ProcessGroup } from '@shardweave/collectives';
import { EmbeddingModel, SequenceClassifier } from '@shardweave/nn/embedding';
import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { SMALL } from '../../../packages/onnx/test/support/small-encoder.ts';
import { UsageError } from '../src/errors.js';
import { commTimes, type Span } from '../src/rank/comm-watch.js';
import { flopsPerToken } from '../src/rank/measure-compute.js';
import type { OpenedRank } from '../src/rank/open-rank.js';
import { RankWatch } from '../src/rank/rank-watch.js';
import { CommCounter } from '../src/rank/step/comm-counter.js';
import { PhaseMemory } from '../src/rank/step/phase-memory.js';
import type { ModelChoice } from '../src/rank/strategies/model-choice.js';
import { blocksOf, bodyOf, deferredBody, withHead } from '../src/rank/strategies/task-model.js';
import { labelId, type OwnHead, promptsOf, resolveHead } from '../src/task/task-head.js';
import {
  countParameters,
  languageConfig,
  longestTextRow,
  numBlocks,
  textConfig,
  widthOf,
} from '../src/task/text-config.js';

const GPT = {
  ...{ model_type: 'gpt2', vocab_size: 20, n_positions: 16, n_embd: 12, n_layer: 2, n_head: 3 },
  ...{ n_inner: null, layer_norm_epsilon: 1e-5, activation_function: 'gelu_new' },
  ...{ resid_pdrop: 0, embd_pdrop: 0, attn_pdrop: 0, initializer_range: 0.02 },
} as never;
const MODULE = {
  model_type: 'module',
  ...{ vocab_size: 9, seq: 4, parameters: 77, blocks: 5, isSequential: false },
} as const;
const newDevice = () => new Device(createReferenceBackend());

/** A group that counts what the test says. */
const groupOf = (bytesSent: number) => {
  const stats = { bytesSent, bytesReceived: 1, allGathers: 2, reduceScatters: 3, allReduces: 4 };
  const group = { stats: () => ({ ...stats }) } as unknown as ProcessGroup;
  return { stats, group };
};

describe('a counter of what is sent', () => {
  it('adds groups up, of which one may be both, from when it was made', () => {
    const [one, other] = [groupOf(10), groupOf(100)];
    const both = new CommCounter({ gather: one.group, reduce: other.group });
    const same = new CommCounter({ gather: one.group, reduce: one.group });
    one.stats.bytesSent += 1;
    other.stats.bytesSent += 5;
    other.stats.allReduces += 2;
    const none = { bytesReceived: 0, allGathers: 0, reduceScatters: 0 };
    expect(both.counts()).toEqual({ ...none, bytesSent: 6, allReduces: 2 });
    expect(same.counts()).toEqual({ ...none, bytesSent: 1, allReduces: 0 });
  });

  it('leaves out what is sent in pauses, of which there may be several', async () => {
    const { group, stats } = groupOf(10);
    const counter = new CommCounter({ gather: group, reduce: group });
    const send = async (bytes: number) => {
      stats.bytesSent += bytes;
      return bytes;
    };
    await send(1);
    expect(await counter.pause(() => send(100))).toBe(100);
    await send(2);
    await counter.pause(() => send(1000));
    expect(counter.counts().bytesSent).toBe(3);
  });
});

describe('the memory of phases', () => {
  it('is the most of each since it was last asked for, and of all since the first', () => {
    const device = newDevice();
    const { ledger } = device;
    ledger.add('parameter', 1000);
    ledger.add('parameter', -900);
    const memory = new PhaseMemory(ledger);
    const hold = (bytes: number) => {
      ledger.add('activation', bytes);
      ledger.add('activation', -bytes);
    };
    hold(70); // before any phase
    for (const [phase, bytes] of [
      ['backward', 10],
      ['forward', 30],
      ['backward', 50],
      ['forward', 20],
    ] as const) {
      memory.enter(phase);
      hold(bytes);
    }
    const totals = () => memory.take().map(({ phase, bytes }) => [phase, bytes.total]);
    expect(totals()).toEqual([
      ['forward', 130],
      ['backward', 150],
    ]);
    expect(totals()).toEqual([]);
    expect(memory.peak()).toMatchObject({ total: 170, activation: 70, parameter: 100 });
    ledger.add('gradient', 20);
    hold(5);
    expect(memory.peak()).toMatchObject({ total: 170, activation: 70, gradient: 20 });
    device.dispose();
  });

  it('a watched rank leaves out its first step, whose kernels are new', () => {
    const device = newDevice();
    const { group, stats } = groupOf(0);
    const found: unknown[] = [];
    const options = { rank: 3, emit: (event: unknown) => found.push(event) };
    const times = { collectiveMs: 2, exposedMs: 1 };
    const comm = { begin: () => {}, look: () => {}, take: () => times };
    const rank = { options, device, groups: { gather: group, reduce: group }, comm };
    const watch = new RankWatch(rank as unknown as OpenedRank);
    for (const [step, bytes] of [70, 20, 30, 10].entries()) {
      watch.begin(step);
      watch.onPhase('update');
      device.ledger.add('staging', bytes);
      device.ledger.add('staging', -bytes);
      stats.bytesSent += bytes;
      watch.onPhase(undefined);
      expect(watch.end()).toEqual({ peakBytes: 70, wireBytes: bytes, ...times });
      expect(found.at(-1)).toMatchObject({
        type: 'rank',
        status: { rank: 3, step: step + 1, bytesSent: bytes, bytesReceived: 0, ...times },
      });
    }
    expect(watch.numSteps).toBe(4);
    expect(watch.phases().map(({ phase, bytes }) => [phase, bytes.total])).toEqual([
      ['update', 30],
    ]);
    const unwatched = new RankWatch({ ...rank, comm: undefined } as unknown as OpenedRank);
    unwatched.begin(0);
    expect(unwatched.end()).toEqual({ peakBytes: 0, wireBytes: 0 });
    expect(found).toHaveLength(4);
    device.dispose();
  });
});

it.each<[Span[], Span[], number, number]>([
  [[[0, 4]], [], 4, 4],
  [[[0, 4]], [[4, 9]], 4, 4],
  [[[0, 4]], [[2, 3], [1, 9]], 4, 1], // biome-ignore format: spans
  [[[0, 9], [2, 3], [9, 10]], [[0, 1]], 10, 9], // biome-ignore format: spans
  [[[0, 2], [5, 7]], [[1, 6]], 4, 2], // biome-ignore format: spans
  [[[0, 2]], [[-5, Number.POSITIVE_INFINITY]], 2, 0],
])('collectives in %j beside work in %j are %d ms, %d exposed', (calls, busy, all, exposed) => {
  expect(commTimes(calls, busy)).toEqual({ collectiveMs: all, exposedMs: exposed });
});

describe('the shape of what is trained', () => {
  it.each([
    ['a gpt2', GPT, 12, 2, 16],
    [
      'an encoder',
      SMALL,
      SMALL.hidden_size,
      SMALL.num_hidden_layers,
      SMALL.max_position_embeddings,
    ],
  ])('%s has a width, blocks and rows', (_, config, width, blocks, row) => {
    expect([widthOf(config), numBlocks(config), longestTextRow(config)]).toEqual([
      ...[width, blocks, row],
    ]);
    expect(textConfig(config)).toBe(config);
  });

  it('a module is what it says', () => {
    expect([numBlocks(MODULE), countParameters(MODULE)]).toEqual([5, 77]);
    expect(() => textConfig(MODULE)).toThrow('A module is no text model.');
    expect(() => languageConfig(MODULE)).toThrow('A module is no text model.');
    expect(() => languageConfig(SMALL)).toThrow('An encoder is no language model.');
    expect(languageConfig(GPT)).toBe(GPT);
  });

  it("an encoder's tables are looked up, and in no token's product", () => {
    const { hidden_size: width, vocab_size, max_position_embeddings: rows } = SMALL;
    const weights = countParameters(SMALL) - (vocab_size + rows) * width;
    const attention = 12 * SMALL.num_hidden_layers * width * 5;
    expect(flopsPerToken(SMALL, 5, false)).toBe(6 * weights + attention);
  });
});

describe('the head of a task', () => {
  const CLASSES = { labels: ['a', 'b'], problemType: 'multi_label_classification' } as const;
  const SENTENCE = {
    ...{ pooling: 'cls', normalize: false, width: 4, prompts: { query: 'q' } },
    ...{ similarity: 'dot', maxSeqLength: 0 },
  } as never;

  it.each<[string, string | undefined, unknown, OwnHead, object]>([
    ['lm', undefined, SMALL, { sentence: SENTENCE }, { kind: 'lm' }],
    ['embed', undefined, SMALL, {}, { kind: 'embed', pooling: 'mean', normalize: true }],
    ['embed', undefined, GPT, {}, { kind: 'embed', pooling: 'last', normalize: true }],
    ['embed', 'mean', GPT, {}, { kind: 'embed', pooling: 'mean', normalize: true }],
    ['embed', 'last', SMALL, { sentence: SENTENCE }, { pooling: 'last', normalize: false }],
    [
      ...(['embed', undefined, GPT, { sentence: SENTENCE }] as const),
      {
        ...{ kind: 'embed', pooling: 'cls', normalize: false, prompts: { query: 'q' } },
        ...{ similarity: 'dot', maxSeqLength: 0 },
      },
    ],
    ['rerank', undefined, GPT, {}, { labels: ['LABEL_0'], ...MULTI() }],
    ['rerank', undefined, GPT, { classes: { labels: ['x'] } }, { labels: ['x'], ...MULTI() }],
    ['rerank', undefined, GPT, { classes: CLASSES }, { labels: ['LABEL_0'], ...MULTI() }],
    ['classify', undefined, GPT, {}, { labels: [], problemType: 'single_label_classification' }],
    ['classify', undefined, GPT, { classes: CLASSES }, CLASSES],
  ])('%s with %s', (task, pooling, config, own, expected) => {
    const flags = { task, pooling } as never;
    expect(resolveHead(flags, config as never, own)).toMatchObject(expected);
  });

  it('has the prompts that are there, of documents the first name that is', () => {
    expect(promptsOf({})).toEqual({ query: undefined, document: undefined });
    const prompts = { query: 'q', corpus: 'c', passage: 'p', document: 'd' };
    expect(promptsOf({ prompts })).toEqual({ query: 'q', document: 'd' });
    const { document: _, ...others } = prompts;
    expect(promptsOf({ prompts: others })).toMatchObject({ document: 'p' });
    expect(promptsOf({ prompts: { corpus: 'c' } })).toEqual({ query: undefined, document: 'c' });
  });

  it.each<[string, string[], number | undefined]>([
    ['b', ['a', 'b'], 1],
    ['0', ['a', 'b'], 0],
    ['2', ['a', 'b'], undefined],
    ['01', ['a', 'b'], undefined],
    ['1', ['1', '0'], 0],
    ['2', ['0', '1', '-3'], undefined],
    ['1', ['a', '-1'], undefined],
    ['1', ['a', '1.5'], 1],
    ['0', [], undefined],
  ])('label %s of %j is %s', (label, labels, id) => {
    expect(labelId(label, labels)).toBe(id);
  });
});

/** The loss of a reranker. */
function MULTI() {
  return { kind: 'rerank', problemType: 'multi_label_classification' };
}

describe('the model of a task', () => {
  const LORA = { rank: 2, alpha: 4, dropout: 0, targets: 'all-linear', baseType: undefined };
  const choiceOf = (modelConfig: unknown, more: object = {}): ModelChoice =>
    ({
      ...{ modelConfig, precision: 'fp32', seed: 1, head: { kind: 'lm' }, lora: undefined },
      ...more,
    }) as ModelChoice;
  const loraOf = (more: object) => ({ lora: { ...LORA, directory: undefined, ...more } });
  const trained = (config: unknown, more: object) => {
    const body = deferredBody(newDevice(), choiceOf(config, more));
    return body.namedParameters().filter(([, { requiresGrad }]) => requiresGrad);
  };

  it.each([
    ['names of a gpt2', GPT, { targets: ['c_proj'] }, /\.c_proj\.lora_[AB]\./],
    [
      'names of files',
      SMALL,
      { targets: ['bert.encoder.layer.0.output.dense'] },
      /^\S*layer\.0\.output/,
    ],
  ])('has adapters at the %s', (_, config, more, expected) => {
    const names = trained(config, loraOf(more)).map(([name]) => name);
    const adapters = names.filter((name) => name.includes('.lora_'));
    expect(adapters.length).toBeGreaterThan(1);
    expect(adapters.filter((name) => !expected.test(name))).toEqual([]);
  });

  it('has a pooler that is trained whole beside adapters, where it has one', () => {
    const whole = (isPooled: boolean) =>
      trained({ ...SMALL, add_pooling_layer: isPooled }, loraOf({})).filter(
        ([name]) => !name.includes('.lora_'),
      );
    expect(whole(true).map(([name]) => name.replace(/^.*pooler/, 'pooler'))).toEqual([
      ...['pooler.dense.weight', 'pooler.dense.bias'].map((name) => expect.stringContaining(name)),
    ]);
    expect(whole(false)).toEqual([]);
    expect(() => trained(GPT, loraOf({ targets: ['q_proj'] }))).toThrow(UsageError);
  });

  it.each([
    ['fp32', undefined, 'f32'],
    ['bf16', undefined, 'bf16'],
    ['fp32', 'bf16', 'bf16'],
    ['bf16', 'f32', 'f32'],
    ['fp16', 'q8_0', 'f16'],
  ])('computed in %s has a base of %s in %s', (precision, baseType, dtype) => {
    const choice = choiceOf(GPT, { precision, ...loraOf({ baseType }) });
    const frozen = deferredBody(newDevice(), choice)
      .parameters()
      .filter(({ requiresGrad, rank }) => !requiresGrad && rank === 2);
    expect(new Set(frozen.map((parameter) => parameter.dtype))).toEqual(new Set([dtype]));
  });

  it('is put under its head, and found there', () => {
    const device = newDevice();
    const under = (config: unknown, head: object) => {
      const choice = choiceOf(config, { head });
      const body = deferredBody(device, choice);
      const model = withHead(body, choice);
      expect(bodyOf(model)).toBe(body);
      const blocks = blocksOf(model);
      expect(blocks.map(({ name }) => name)).toEqual(['1', '2'].slice(0, numBlocks(body.config)));
      expect(blocks.map(({ module }) => module)).toEqual(body.layers().slice(1, 1 + blocks.length));
      return model === body ? 'body' : model;
    };
    expect(under(GPT, { kind: 'lm' })).toBe('body');
    expect(under(GPT, { kind: 'module' })).toBe('body');
    const embed = { kind: 'embed', pooling: 'cls', normalize: false };
    expect(under(SMALL, embed)).toMatchObject({ pooling: 'cls', normalize: false });
    expect(under(SMALL, embed)).toBeInstanceOf(EmbeddingModel);
    for (const [labels, width] of [
      [[], 2],
      [['a', 'b', 'c'], 3],
    ] as const) {
      const model = under(SMALL, { kind: 'classify', ...{ labels }, problemType: undefined });
      expect(model).toBeInstanceOf(SequenceClassifier);
      expect(model).toMatchObject({ config: { labels: { length: width } } });
    }
    device.dispose();
  });
});
