// The index is checked in every field: the error names each one that is wrong.

import { crc32 } from 'node:zlib';
import {
  beginSave,
  CheckpointFormatError,
  openSave,
  type PieceStore,
  piecesIn,
} from '@shardweave/checkpoint';
import { createHostStore } from '@shardweave/shard-store';
import { beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { expectSaved, model, save } from './support/saves.js';

// biome-ignore lint/suspicious/noExplicitAny: parts of it are taken away and made something else
type Index = any;

let store: PieceStore;
let whole: Index;
beforeAll(async () => {
  store = piecesIn(createHostStore());
  await save(store, model(1));
  whole = await indexOf(store);
});
beforeEach(() => replace(store, whole));

async function indexOf(place: PieceStore): Promise<Index> {
  const bytes = new Uint8Array((await place.byteLength('index.json'))!);
  await place.read('index.json', bytes, { offset: 0 });
  return JSON.parse(new TextDecoder().decode(bytes)).index;
}

/** Writes an index with a matching checksum. */
function replace(place: PieceStore, index: unknown): Promise<void> {
  const text = JSON.stringify(index);
  const digits = crc32(text).toString(16).padStart(8, '0');
  const file = `{"crc32":"${digits}","index":${text}}\n`;
  return place.replace('index.json', new TextEncoder().encode(file));
}

const FAULTS: readonly (readonly [field: string, change: (index: Index) => unknown])[] = [
  ['tensors', (index) => Object.assign(index, { tensors: {} })],
  ['tensors[0].name', (index) => delete index.tensors[0].name],
  ['tensors[1].name', (index) => Object.assign(index.tensors[1], { name: '0.weight' })],
  ['tensors[0].kind', (index) => Object.assign(index.tensors[0], { kind: 'weights' })],
  ['tensors[0].dtype', (index) => Object.assign(index.tensors[0], { dtype: 'f64' })],
  ['tensors[0].dtype', (index) => Object.assign(index.tensors[0], { dtype: 3 })],
  ['tensors[0].shape', (index) => Object.assign(index.tensors[0], { shape: '3' })],
  ['tensors[0].shape', (index) => Object.assign(index.tensors[0], { shape: [2 ** 30, 2 ** 30] })],
  ['tensors[0].shape[0]', (index) => Object.assign(index.tensors[0].shape, { 0: -3 })],
  ['tensors[0].pieces', (index) => index.tensors[0].pieces.pop()],
  ['tensors[0].pieces[0][0]', (index) => index.tensors[0].pieces.shift()],
  ['tensors[0].pieces[0][1]', (index) => Object.assign(index.tensors[0].pieces[0], { 1: 0 })],
  ['tensors[0].pieces[0][2]', (index) => Object.assign(index.tensors[0].pieces[0], { 2: 9 })],
  ['tensors[0].pieces[0][3]', (index) => Object.assign(index.tensors[0].pieces[0], { 3: 2 ** 40 })],
  ['tensors[0].pieces[0][3]', (index) => Object.assign(index.tensors[0].pieces[0], { 3: 2 ** 53 })],
  ['tensors[0].pieces[0][3]', (index) => Object.assign(index.tensors[0].pieces[0], { 3: '0' })],
  ['tensors[0].pieces[0][4]', (index) => index.tensors[0].pieces[0].pop()],
  ['tensors[4].state', (index) => delete index.tensors[4].state],
  ['files', (index) => delete index.files],
  ['files[0].name', (index) => Object.assign(index.files[0], { name: '../../somewhere' })],
  ['files[1].byteLength', (index) => Object.assign(index.files[1], { byteLength: 0.5 })],
  ['optimizer', (index) => delete index.optimizer],
  ['optimizer.steps.0.weight', (index) => Object.assign(index.optimizer.steps, { '0.weight': -1 })],
  ['optimizer.groups[0].params', (index) => delete index.optimizer.groups[0].params],
  ['optimizer.kind', (index) => delete index.optimizer.kind],
  ['optimizer.groups', (index) => Object.assign(index.optimizer, { groups: null })],
  ['extra', (index) => Object.assign(index, { extra: [] })],
  ['id', (index) => Object.assign(index, { id: 7 })],
];

it.each(FAULTS)('%s', async (field, change) => {
  const index = await indexOf(store);
  change(index);
  await replace(store, index);
  const error = await openSave(store).catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(CheckpointFormatError);
  expect(error).toMatchObject({ code: 'FORMAT', file: 'index.json' });
  expect((error as CheckpointFormatError).field.replace('index.', '')).toBe(field);
});

describe('another format', () => {
  it('1 is refused by name, and not written over', async () => {
    const text = '{"format":"shardweave-shards","version":1,"worldSize":2,"tensors":{},"extra":{}}';
    await store.replace('index.json', new TextEncoder().encode(text));
    for (const call of [openSave(store), beginSave(store)]) {
      await expect(call).rejects.toMatchObject({
        code: 'FORMAT',
        message: expect.stringMatching(/format 1 \('shardweave-shards' version 1\).*save again/),
      });
    }
    expect(await store.byteLength('index.json')).toBe(text.length);
  });

  it.each([
    ['a later version', { format: 'shardweave-checkpoint', version: 3 }, 'version 3'],
    ['a stranger', { format: 'npz' }, "'npz'"],
  ])('%s', async (_, index, text) => {
    await replace(store, index);
    await expect(openSave(store)).rejects.toThrow(text);
  });

  it.each([
    ['no JSON', 'save'],
    ['null', 'null'],
    ['a list', '[]'],
  ])('%s', async (_, text) => {
    await store.replace('index.json', new TextEncoder().encode(text));
    await expect(openSave(store)).rejects.toMatchObject({ code: 'FORMAT' });
  });
});

it('an index that is whole loads', async () => {
  await expectSaved(store, model(1));
});
