// What is kept beside a save is JSON, which reads back as it was written, or it is refused.

import { beginSave, openSave, piecesIn, requireJson, writeSave } from '@shardweave/checkpoint';
import { createHostStore } from '@shardweave/shard-store';
import { expect, it } from 'vitest';
import { expectSaved, model, save } from './support/saves.js';

class Progress {
  step = 3;
}

const cyclic: Record<string, unknown> = { step: 1 };
cyclic.self = [cyclic];

const REFUSED: readonly (readonly [path: string, got: string, extra: Record<string, unknown>])[] = [
  ['extra.best', 'Infinity', { step: 1, best: Number.POSITIVE_INFINITY }],
  ['extra.losses[1]', 'NaN', { losses: [1, Number.NaN] }],
  ['extra.run.seed', 'undefined', { run: { seed: undefined } }],
  ['extra.seen', 'an instance of Map', { seen: new Map([['a', 1]]) }],
  ['extra.seen', 'an instance of Set', { seen: new Set([1]) }],
  ['extra.at', 'an instance of Date', { at: new Date(0) }],
  ['extra.ids', 'an instance of Int32Array', { ids: Int32Array.of(1) }],
  ['extra.progress', 'an instance of Progress', { progress: new Progress() }],
  ['extra.next', 'a function', { next: () => 1 }],
  ['extra.count', 'the bigint 7', { count: 7n }],
  ['extra.id', 'Symbol(x)', { id: Symbol('x') }],
  ['extra', 'the key Symbol(x)', { [Symbol('x')]: 1 }],
  [
    'extra.list',
    'an array with holes or names',
    { list: Object.assign(new Array(3), { 0: 1, 2: 3 }) },
  ],
  ['extra.list', 'an array with holes or names', { list: new Array(2) }],
  ['extra.list', 'an array with holes or names', { list: Object.assign([1], { name: 'x' }) }],
  ['extra.self[0]', 'a value that contains itself', cyclic],
  ['extra.own', 'an object with toJSON', { own: { toJSON: () => 1 } }],
];

it.each(REFUSED)('refused at %s: %s, and the save before stays', async (path, got, extra) => {
  const message = `save: expected JSON at ${path}, which reads back as it was written, got ${got}.`;
  expect(() => requireJson(extra, 'extra')).toThrow(message);
  const store = piecesIn(createHostStore());
  const tensors = model(1);
  await save(store, tensors);
  const session = await beginSave(store);
  await expect(session.publish([], { extra })).rejects.toMatchObject({ code: 'USAGE' });
  await expectSaved(store, tensors);
});

it('what is beside the tensors reads back as it was written', async () => {
  const shared = { lr: 1e-3 };
  const extra = {
    step: -1.5,
    text: '\u{1f600} \ud800 "',
    none: null,
    isDone: false,
    list: [[], {}, [shared, shared]],
    bare: Object.assign(Object.create(null), { a: 1 }),
    ['__proto__']: { b: 2 },
  };
  const store = piecesIn(createHostStore());
  await writeSave(store, { pieces: [], record: () => ({ extra }) });
  const found = (await openSave(store)).extra;
  expect(found).toEqual(JSON.parse(JSON.stringify(extra)));
  expect([found.text, found.step, found.none]).toEqual([extra.text, extra.step, null]);
});
