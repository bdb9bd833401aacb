// Any number of processes can read what any other number wrote: the values are the same, and each
// process reads only its own part.

import {
  beginSave,
  CheckpointBusyError,
  CheckpointIncompleteError,
  CheckpointMissingError,
  CheckpointUsageError,
  firstOf,
  openSave,
  PIECE_BYTES,
  type PieceReader,
  piecesIn,
  StateDictError,
  writePart,
  writeSave,
} from '@shardweave/checkpoint';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import { createHostStore } from '@shardweave/shard-store';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import {
  expectSaved,
  held,
  model,
  PLACES,
  save,
  shareOf,
  tensor,
  wanted,
} from './support/saves.js';

describe.each(PLACES)('a save in %s', (_, place) => {
  it('gives back what was saved, with what came beside it', async () => {
    const store = await place();
    await save(store, model(1), { step: 7 });
    await expectSaved(store, model(1));
    const found = await openSave(store);
    expect(found.extra).toEqual({ step: 7 });
    expect(found.optimizer).toEqual({
      kind: 'Sgd',
      steps: { '0.weight': 7 },
      groups: [{ lr: 0.5, params: ['0.weight'] }],
    });
  });

  it('any cut of a tensor loads into any other, in pieces of at most the allowed length', async () => {
    const store = await place();
    const size = 600_011; // This makes three pieces, of which the last is smaller.
    const whole = tensor('weight', [size]);
    const cuts = fc
      .array(fc.integer({ min: 0, max: size }), { maxLength: 3 })
      .map((inner) => [0, ...inner.sort((a, b) => a - b), size]);
    await fc.assert(
      fc.asyncProperty(cuts, cuts, async (from, to) => {
        const session = await beginSave(store);
        const parts = await Promise.all(
          from.slice(1).map((end, i) => {
            const part = { save: session.id, part: `part-${i}` };
            return writePart(store, [held(whole, from[i], end)], part);
          }),
        );
        await session.publish(parts);
        const found = await openSave(store);
        for (const { pieces } of found.tensors.values()) {
          expect(pieces.every(({ start, end }) => (end - start) * 4 <= PIECE_BYTES)).toBe(true);
        }
        for (const [i, end] of to.slice(1).entries()) {
          const { piece, values } = wanted(whole, to[i], end);
          await found.verify([piece]);
          await found.fill([piece]);
          const expected = whole.values.slice(to[i], end);
          expect(Buffer.from(values.buffer).equals(Buffer.from(expected.buffer))).toBe(true);
        }
      }),
      { seed: 13, numRuns: 6 },
    );
  });

  it('a save over a save leaves nothing of the one before, and none that failed', async () => {
    const store = await place();
    await save(store, model(1));
    const before = await store.files();
    await save(store, model(2), { numParts: 3 });
    const after = await store.files();
    const isPieces = (file: string) => file.endsWith('.pieces');
    expect(after.filter(isPieces)).toHaveLength(3);
    expect(after.filter((file) => isPieces(file) && before.includes(file))).toEqual([]);
    await expectSaved(store, model(2));
    const failing = {
      ...held(tensor('0.bias', [5])),
      read: async () => {
        throw new Error('device lost');
      },
    };
    await expect(writeSave(store, { pieces: [failing] })).rejects.toThrow('device lost');
    expect((await store.files()).filter(isPieces)).toEqual(after.filter(isPieces));
    await expectSaved(store, model(2));
  });

  it('one saves at a time', async () => {
    const store = await place();
    const session = await beginSave(store);
    await expect(beginSave(store)).rejects.toBeInstanceOf(CheckpointBusyError);
    await session.abandon();
    await expect(session.publish([])).rejects.toBeInstanceOf(CheckpointUsageError);
    await save(store, model(1));
    await expectSaved(store, model(1));
  });

  it('a place where nobody saved has no save', async () => {
    await expect(openSave(await place())).rejects.toBeInstanceOf(CheckpointMissingError);
  });
});

it('what would not open is not published, and the save before stays', async () => {
  const piecesOf = async function* () {
    yield held(tensor('0.weight', [3]), 0, 3);
  };
  const store = piecesIn(createHostStore());
  await writeSave(store, { pieces: piecesOf(), record: () => ({ extra: { step: 1 } }) });
  const groups = [{ params: [undefined] }];
  const optimizer = { kind: 'AdamW', steps: {}, groups };
  const saving = writeSave(store, { pieces: piecesOf(), record: () => ({ optimizer }) });
  await expect(saving).rejects.toThrow(
    "expected a text at index.optimizer.groups[0].params[0] of 'index.json' in the save to publish",
  );
  expect((await openSave(store)).extra).toEqual({ step: 1 });
});

it('parts that leave elements out, or have them twice, are not published', async () => {
  const store = piecesIn(createHostStore());
  await save(store, model(1));
  const whole = model(2);
  const [weight] = whole as [(typeof whole)[0]];
  const publish = async (...pieces: ReturnType<typeof held>[]) => {
    const session = await beginSave(store);
    const part = await writePart(store, pieces, { save: session.id, part: 'all' });
    await session.publish([part]);
  };
  const size = weight.values.length;
  for (const [first, second] of [
    [held(weight, 0, 128), held(weight, 256)],
    [held(weight, 0, 256), held(weight, 128)],
    [held(weight, 128, 256), held(weight, 256)],
    [held(weight, 0, 128), held(weight, 128, size - 1)],
  ] as const) {
    const publishing = publish(first, second);
    await expect(publishing).rejects.toBeInstanceOf(CheckpointIncompleteError);
    await expect(publishing).rejects.toMatchObject({ tensor: '0.weight' });
  }
  const reshaped = held(tensor('0.weight', [size]), 128);
  await expect(publish(held(weight, 0, 128), reshaped)).rejects.toMatchObject({
    code: 'STATE_DICT',
    mismatched: ['0.weight'],
  });
  await expectSaved(store, model(1));
});

it('all that does not fit is named at once', async () => {
  const store = piecesIn(createHostStore());
  await save(store, model(1));
  const found = await openSave(store);
  const specs = [
    tensor('0.weight', [100_001, 3]),
    { ...tensor('0.bias', [5]), dtype: 'i32' as const },
    tensor('empty', [0, 4]),
    tensor('2.weight', [4]),
    tensor('0.bias', [5], { state: 'expAvg' }),
  ];
  const error = await Promise.resolve()
    .then(() => found.checkFit(specs))
    .catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(StateDictError);
  expect(error).toMatchObject({
    missing: ['2.weight', 'expAvg of 0.bias'],
    unexpected: ['1.running_mean', 'expAvg of 0.weight'],
    mismatched: ['0.weight', '0.bias'],
  });
  expect(String(error)).toContain('0.bias: expected i32 [5], got f32 [5]');
  const known = specs.slice(2, 3);
  expect(() => found.checkFit(known, { ignores: () => true })).not.toThrow();
  expect(() => found.checkFit(specs.slice(3), { strict: false })).not.toThrow();
  expect(() => found.checkFit(specs.slice(0, 1), { strict: false })).toThrow('Misshapen: 0.weight');
});

it('floats are converted on the way in', async () => {
  const store = piecesIn(createHostStore());
  const values = tensor('weight', [301]);
  await writeSave(store, { pieces: [held(values)] });
  const written = new Uint8Array(301 * 2);
  const write = (start: number, bytes: Uint8Array) => written.set(bytes, start * 2);
  const { values: _, ...spec } = values;
  const half = { ...spec, dtype: 'bf16' as const, start: 0, end: 301, write };
  const found = await openSave(store);
  found.checkFit([half]);
  await found.fill([half]);
  new Uint16Array(written.buffer).forEach((bits, i) => {
    const value = new Float32Array(Uint32Array.of(bits << 16).buffer)[0]!;
    expect(Math.abs(value - values.values[i]!)).toBeLessThanOrEqual(values.values[i]! / 256);
  });
});

describe('files that nobody sees all of', () => {
  it('come from several directories, each with its own part', async () => {
    const stores = [newFolder(), newFolder()].map((path) => pieceDirectory(path));
    const [first, second] = stores as [(typeof stores)[0], (typeof stores)[0]];
    const tensors = model(3);
    const session = await beginSave(first);
    const parts = await Promise.all(
      stores.map((store, rank) => {
        const part = { save: session.id, part: `rank-${rank}` };
        return writePart(store, shareOf(tensors, rank, 2), part);
      }),
    );
    await session.publish(parts);
    await expect(expectSaved(first, tensors)).rejects.toMatchObject({ code: 'CORRUPT' });
    await expectSaved({ ...first, ...firstOf(second, first) }, tensors);
  });

  it('a part is read of the files that have it, and of a reader that asks somebody else', async () => {
    const store = piecesIn(createHostStore());
    const tensors = model(4);
    await save(store, tensors);
    const asked: string[] = [];
    const peer: PieceReader = {
      description: 'a peer',
      byteLength: (file) => store.byteLength(file),
      read: (file, into, options) => {
        asked.push(file.replace(/^save-\d+-[0-9a-f]+-/, ''));
        return store.read(file, into, options);
      },
    };
    const found = await openSave(peer);
    const [weight] = tensors as [(typeof tensors)[0]];
    const { piece, values } = wanted(weight, 0, 1000);
    await found.verify([piece]);
    await found.fill([piece]);
    expect(values).toEqual(weight.values.slice(0, 1000));
    expect(asked).toEqual(['index.json', 'rank-0.pieces', 'rank-0.pieces']);
  });
});
