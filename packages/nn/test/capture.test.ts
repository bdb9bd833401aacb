// A save may be written while steps go on. It then holds the values of the moment of its capture,
// keeps few of them on the host at once, and delays a step only where the step would change values
// that are not read yet.

import {
  beginSave,
  type HeldPiece,
  type PieceStore,
  piecesIn,
  type SavedPart,
  writePart,
} from '@shardweave/checkpoint';
import {
  AdamW,
  BatchNorm1d,
  type CapturedModule,
  captureCheckpoint,
  Linear,
  loadCheckpoint,
  NnConfigError,
  type Optimizer,
  ParameterInit,
  packParameters,
  Sequential,
  type StepOptions,
  stateDict,
} from '@shardweave/nn';
import { createHostStore } from '@shardweave/shard-store';
import { type Backend, Device, StateError } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { expect, it } from 'vitest';
import { textOf as textOfState } from '../../../tooling/test-kit/index.ts';
import { makeDevice } from './support/support.js';

const MIB = 2 ** 20;

interface Sizes {
  readonly inner?: number;
  readonly outer?: number;
}

function open(device: Device, { inner = 3, outer = 2 }: Sizes = {}) {
  const init = new ParameterInit(device, { seed: 1 });
  const model = new Sequential(device, [
    new Linear(device, { inFeatures: 5, outFeatures: inner, init }),
    new Linear(device, { inFeatures: inner, outFeatures: outer, init }),
  ]);
  return { model, optimizer: new AdamW(model.parameters(), { lr: 0.1 }) };
}

/** Gives every parameter a gradient and begins a step. */
function step(
  { device }: Sequential,
  optimizer: Optimizer<object>,
  options: StepOptions = {},
): Promise<void> {
  for (const parameter of optimizer.parameters()) {
    const flat = parameter.piece?.flat ?? parameter;
    flat.grad ??= device.full([flat.size], 0.25).keep();
  }
  return optimizer.step(options);
}

const textOf = async (model: Sequential) => textOfState(await stateDict(model));

/** Lets everything run that does not wait for I/O. */
const turn = () => new Promise((resolve) => setImmediate(resolve));

/** Returns a place for saves in which each write waits until it is allowed. */
function slowPlace(onWrite: (byteLength: number) => Promise<void>): PieceStore {
  const place = piecesIn(createHostStore());
  return {
    ...place,
    create: async (file) => {
      const sink = await place.create(file);
      return {
        write: async (bytes, offset) => {
          await onWrite(bytes.byteLength);
          await sink.write(bytes, offset);
        },
        finish: () => sink.finish(),
        abandon: () => sink.abandon(),
      };
    },
  };
}

async function save(store: PieceStore, captured: CapturedModule): Promise<void> {
  const session = await beginSave(store);
  let part: SavedPart;
  try {
    part = await writePart(store, captured.pieces, { save: session.id, part: 'all' });
  } finally {
    await captured.release();
  }
  await session.publish([part], { optimizer: captured.optimizer });
}

/** Yields the pieces, of which each read waits until it is allowed. */
async function* slowly(
  pieces: AsyncIterable<HeldPiece>,
  onRead: () => Promise<void>,
): AsyncGenerator<HeldPiece> {
  for await (const piece of pieces) {
    const read: HeldPiece['read'] = async (...range) => {
      await onRead();
      return piece.read(...range);
    };
    yield { ...piece, read };
  }
}

/** Returns a device that counts the bytes that are read from it. */
function counting(inner: Backend): { readonly backend: Backend; bytes: number } {
  const own: Partial<Backend> = {
    read: (...call) => {
      count.bytes += call[2];
      return inner.read(...call);
    },
    readNow: (...call) => {
      count.bytes += call[2].byteLength;
      inner.readNow!(...call);
    },
  };
  const backend = new Proxy(inner, {
    get: (target, name) => {
      const member: unknown = Reflect.get(name in own ? own : target, name);
      return typeof member === 'function' ? member.bind(target) : member;
    },
  });
  const count = { backend, bytes: 0 };
  return count;
}

it('holds two blocks on the host at most', async () => {
  const count = counting(await createCpuBackend({ threads: 0 }));
  const { model, optimizer } = open(new Device(count.backend), { inner: 1024, outer: 1024 });
  await step(model, optimizer);
  count.bytes = 0;
  let written = 0;
  let most = 0;
  const store = slowPlace(async (byteLength) => {
    await turn();
    most = Math.max(most, count.bytes - written);
    written += byteLength;
  });
  await save(store, await captureCheckpoint(model, { optimizer }));
  expect(written).toBe(3 * 4 * (5 * 1024 + 1024 + 1024 * 1024 + 1024));
  expect(most).toBeGreaterThan(4 * MIB);
  // A part of a page is left for the next piece.
  expect(most).toBeLessThanOrEqual(8 * MIB + 2 * 4096);
  await loadCheckpoint(model, store, { optimizer }); // This checks that the save has what was read.
  await count.backend.dispose();
});

it('a step changes each flat when it is read, and the save has none of it', async () => {
  const device = makeDevice();
  const { model, optimizer } = open(device);
  await step(model, optimizer);
  const before = await textOf(model);
  const moments = await optimizer.stateDict(model.namedParameters());
  const allowed: (() => void)[] = [];
  const store = piecesIn(createHostStore());
  const captured = await captureCheckpoint(model, { optimizer });
  const slow = slowly(captured.pieces, () => new Promise((resolve) => allowed.push(resolve)));
  const saving = save(store, { ...captured, pieces: slow });
  let isStepped = false;
  const stepping = step(model, optimizer).then(() => {
    isStepped = true;
  });
  // A parameter and its two moments take three reads, and a fourth read has begun when they are
  // done.
  const stepped: string[][] = [];
  for (let numRead = 0; allowed.length > 0 || numRead < 12; numRead++) {
    await turn();
    allowed.shift()!();
    await turn();
    const now = await textOf(model);
    stepped.push(Object.keys(now).filter((name) => now[name] !== before[name]));
    expect(isStepped).toBe(stepped.at(-1)!.length === 4);
  }
  await Promise.all([saving, stepping]);
  const counts = stepped.map(({ length }) => length);
  expect(counts[0]).toBe(0);
  expect(counts).toEqual([...counts].sort());
  expect(new Set(counts).size).toBeGreaterThan(3);
  expect(captured.waitMs).toBeGreaterThan(0);

  const { model: loaded, optimizer: other } = open(makeDevice());
  await loadCheckpoint(loaded, store, { optimizer: other });
  expect(await textOf(loaded)).toEqual(before);
  expect(await other.stateDict(loaded.namedParameters())).toEqual(moments);
});

it('a step does not overtake an earlier one that waits', async () => {
  const stepTwice = async (isCaptured: boolean) => {
    const { model, optimizer } = open(makeDevice());
    const captured = isCaptured ? await captureCheckpoint(model, { optimizer }) : undefined;
    const first = step(model, optimizer);
    optimizer.groups[0]!.lr = 0.01;
    void captured?.release(); // nothing is waiting to be read when the second step is called
    await Promise.all([first, step(model, optimizer)]);
    return textOf(model);
  };
  expect(await stepTwice(true)).toEqual(await stepTwice(false));
});

it('a step that waits has its scale, though its tensor is disposed meanwhile', async () => {
  const stepScaled = async (isCaptured: boolean) => {
    const { model, optimizer } = open(makeDevice());
    const captured = isCaptured ? await captureCheckpoint(model, { optimizer }) : undefined;
    const gradScale = model.device.full([1], 0);
    const stepping = step(model, optimizer, { gradScale });
    gradScale.dispose();
    await Promise.all([captured?.release(), stepping]);
    return textOf(model);
  };
  expect(await stepScaled(true)).toEqual(await stepScaled(false));
});

it('a step of a packed module waits until all of it is read', async () => {
  const device = makeDevice();
  const { model } = open(device);
  packParameters(model);
  const optimizer = new AdamW(model.parameters(), { lr: 0.1 });
  const before = await textOf(model);
  const captured = await captureCheckpoint(model, { optimizer });
  const stepping = step(model, optimizer);
  await turn();
  expect(await textOf(model)).toEqual(before);
  await captured.release();
  await stepping;
  expect(await textOf(model)).not.toEqual(before);
});

it('a write that fails lets steps go on', async () => {
  const { model, optimizer } = open(makeDevice());
  const captured = await captureCheckpoint(model, { optimizer });
  const stepping = step(model, optimizer);
  const store = slowPlace(async () => {
    throw new Error('the disk is full');
  });
  await expect(save(store, captured)).rejects.toThrow('the disk is full');
  await stepping;
  await model.parameters()[0]!.storage.write(new Uint8Array(4));
});

it('what changes by other means is refused, before it is read or in the save', async () => {
  const { model } = open(makeDevice());
  const captured = await captureCheckpoint(model);
  const { storage } = model.parameters()[0]!;
  expect(() => storage.write(new Uint8Array(4))).toThrow(StateError);
  storage.markWritten(); // A kernel that wrote to it would do this.
  await expect(save(piecesIn(createHostStore()), captured)).rejects.toThrow(NnConfigError);
});

it('buffers have the values of the capture', async () => {
  const norm = (device: Device) => new BatchNorm1d(device, { numFeatures: 2 });
  const source = norm(makeDevice());
  const captured = await captureCheckpoint(source);
  const [, average] = source.namedBuffers().find(([name]) => name === 'running_mean')!;
  average.storage.write(new Uint8Array(Float32Array.of(7, 8).buffer)); // A forward does this.
  const store = piecesIn(createHostStore());
  await save(store, captured);
  const loaded = norm(makeDevice());
  await loadCheckpoint(loaded, store);
  const found = new Map(loaded.namedBuffers());
  expect([...(await found.get('running_mean')!.toArray())]).toEqual([0, 0]);
});

it('a module that is disposed is saved all the same, and then freed', async () => {
  const device = makeDevice();
  const { model } = open(device);
  const before = await textOf(model);
  const captured = await captureCheckpoint(model);
  model.dispose();
  const store = piecesIn(createHostStore());
  await save(store, captured);
  expect(device.ledger.live().total).toBe(0);
  const { model: loaded } = open(makeDevice());
  await loadCheckpoint(loaded, store);
  expect(await textOf(loaded)).toEqual(before);
});

it('a step that waits refuses a gradient that a backward has added to', async () => {
  const { model, optimizer } = open(makeDevice());
  await step(model, optimizer);
  const before = await textOf(model);
  const captured = await captureCheckpoint(model);
  const stepping = step(model, optimizer);
  const { grad } = model.parameters()[0]!;
  model.device.addInPlace(grad!, grad!);
  await captured.release();
  await expect(stepping).rejects.toThrow('optimizer.step: expected the gradient of');
  expect(await textOf(model)).toEqual(before);
  optimizer.zeroGrad();
  await step(model, optimizer);
  expect(await textOf(model)).not.toEqual(before);
});
