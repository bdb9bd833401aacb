// What programs in plain JavaScript get wrong in calls of models: names of options and kinds of
// arguments. Each call says what it expected, and changes nothing.

import { CheckpointUsageError, piecesIn } from '@shardweave/checkpoint';
import {
  AdamW,
  captureCheckpoint,
  clipGradNorm,
  Gpt2,
  GradScaler,
  Linear,
  loadCheckpoint,
  loadStateDict,
  mergeAdapters,
  modelConfigText,
  NnConfigError,
  packParameters,
  peftConfigText,
  readSafetensors,
  StateDictError,
  safetensorsByteLength,
  saveCheckpoint,
  stateDict,
  writeSafetensors,
} from '@shardweave/nn';
import { createHostStore } from '@shardweave/shard-store';
import { describe, expect, it } from 'vitest';
import { loose, refusal } from '../../../tooling/test-kit/index.ts';
import { makeDevice } from './support/support.js';

function layer({ isPacked = false } = {}) {
  const device = makeDevice();
  const model = new Linear(device, { inFeatures: 2, outFeatures: 2 });
  const handle = isPacked ? packParameters(model) : undefined;
  return { device, model, handle, optimizer: new AdamW(model.parameters()) };
}

const STORE = piecesIn(createHostStore());
const CONFIG = { n_embd: 4, n_head: 1, n_layer: 1, n_positions: 4, vocab_size: 8 };

describe('options', () => {
  const options = loose({ onlyTrainded: true });
  it.each([
    ['saveCheckpoint', () => saveCheckpoint(layer().model, STORE, options)],
    ['captureCheckpoint', () => captureCheckpoint(layer().model, options)],
    ['loadCheckpoint', () => loadCheckpoint(layer().model, STORE, options)],
    ['loadStateDict', () => loadStateDict(layer().model, new Map(), options)],
    ['writeSafetensors', async () => writeSafetensors(new Map(), options)],
    ['safetensorsByteLength', async () => safetensorsByteLength(new Map(), options)],
    ['mergeAdapters', async () => mergeAdapters(new Map(), new Map(), options)],
    ['peftConfigText', async () => peftConfigText(loose({ layers: [] }), options)],
    ['modelConfigText', async () => modelConfigText(loose({ model_type: 'gpt2' }), options)],
    ['model.call', () => new Gpt2(makeDevice(), CONFIG).call(loose(undefined), options)],
  ])('an unknown option of %s is refused by its name', async (name, call) => {
    const message = await refusal(NnConfigError, call);
    expect(message).toContain(`${name}: expected known options, got 'onlyTrainded'.`);
  });
});

it('targets in place of options are refused, for the model would give logits', async () => {
  const device = makeDevice();
  const ids = device.tensor(Int32Array.of(1, 2), [1, 2]);
  await expect(new Gpt2(device, CONFIG).call(ids, loose(ids))).rejects.toThrow(
    'model.call: expected options after the ids, got a tensor. Write { targets }.',
  );
});

describe('a value of another kind', () => {
  const { model, optimizer } = layer();
  const { handle } = layer({ isPacked: true });
  const file = () => readSafetensors(writeSafetensors(new Map()));
  it.each([
    [
      'a path for a store',
      () => saveCheckpoint(model, loose('run')),
      CheckpointUsageError,
      'save: expected a PieceStore, got "run". Write pieceDirectory(path) of',
    ],
    [
      'a ShardStore for a store of pieces',
      () => saveCheckpoint(model, loose(createHostStore())),
      CheckpointUsageError,
      'Write piecesIn(store) for a ShardStore.',
    ],
    [
      'a path for a reader',
      () => loadCheckpoint(model, loose('run')),
      CheckpointUsageError,
      'load: expected a PieceReader, got "run".',
    ],
    [
      'optimizers for one',
      () => saveCheckpoint(model, STORE, { optimizer: loose([optimizer]) }),
      NnConfigError,
      'saveCheckpoint: expected optimizer to be one optimizer, such as an AdamW, got [an object of AdamW].',
    ],
    [
      "a scaler's step without its optimizer",
      () => new GradScaler(model).step(loose(undefined)),
      NnConfigError,
      'GradScaler.step: expected optimizer to be one optimizer, such as an AdamW, got nothing.',
    ],
    [
      "a scaler's unscale of optimizers",
      () => new GradScaler(model).unscale(loose([optimizer])),
      NnConfigError,
      'GradScaler.unscale: expected optimizer to be one optimizer',
    ],
    [
      'the handle of packed parameters for a model',
      () => stateDict(loose(handle)),
      NnConfigError,
      'packParameters changes the model in place: give the model.',
    ],
    [
      'the handle of packed parameters for what has gradients',
      () => clipGradNorm(loose(handle), 1),
      NnConfigError,
      'packParameters changes the model in place: give the model.',
    ],
    [
      'parameters for a module to pack',
      async () => packParameters(loose(model.parameters())),
      NnConfigError,
      'packParameters: expected a module, got [an object of Tensor',
    ],
    [
      'a whole file for its tensors',
      () => loadStateDict(model, loose(file())),
      StateDictError,
      'loadStateDict: expected a map of tensors by name, got a plain object. Give its `tensors`.',
    ],
    [
      'an object for a map',
      () => loadStateDict(model, loose({ weight: [1] })),
      StateDictError,
      'loadStateDict: expected a map of tensors by name, got a plain object. stateDict and',
    ],
    [
      'numbers for an entry',
      () => loadStateDict(model, loose(new Map([['weight', [1]]]))),
      StateDictError,
      "loadStateDict: expected 'weight' as { dtype, shape, data }",
    ],
  ])('%s', async (_, call, type, message) => {
    expect(await refusal(type, call)).toContain(message);
  });
});
