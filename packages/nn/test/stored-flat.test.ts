// Some flats rest off the device. What the host computes on the way has the same bits as the
// kernels of the device.

import { AdamW, clipGradNorm, gradNorm, type Optimizer, Sgd, scaleGradients } from '@shardweave/nn';
import { flatHomeOf, HostBuffers, StoredFlat, setFlatHome, storeUseOf } from '@shardweave/nn/flat';
import { type Backend, Device, type DType, square, Tensor } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { noWebGpu, openWebGpu } from '../../../tooling/test-kit/webgpu-device.ts';
import { MapStore } from './support/map-store.js';
import { values } from './support/support.js';

const BACKENDS: readonly (readonly [string, () => Promise<Backend>])[] = [
  ['reference', async () => createReferenceBackend()],
  ['cpu', () => createCpuBackend({ threads: 1 })],
];

describe.each(BACKENDS)('on the %s backend', (_, openBackend) => {
  const SIZES = [300, 7, 128] as const;
  const optimizers: readonly (readonly [string, (params: Tensor[]) => Optimizer<object>])[] = [
    ['AdamW', (params) => new AdamW(params, { lr: 0.1 })],
    ['SGD with momentum', (params) => new Sgd(params, { lr: 0.1, momentum: 0.9 })],
    ['plain SGD', (params) => new Sgd(params, { lr: 0.1 })],
  ];

  it.each(optimizers)('%s steps as on the device, bit for bit', async (_name, makeOptimizer) => {
    const backend = await openBackend();
    const outcomes: object[] = [];
    for (const isAtHome of [false, true]) {
      const device = new Device(backend);
      const store = new MapStore();
      const flats = SIZES.map((size, index) => leaf(device, values(size, index + 1)));
      const homes = isAtHome
        ? await Promise.all(flats.map((flat, i) => moveHome(flat, store, { name: `flat ${i}` })))
        : [];
      const optimizer = makeOptimizer(flats);
      const norms: number[] = [];
      for (let step = 0; step < 3; step++) {
        for (const [index, flat] of flats.entries()) {
          if (step === 1 && index === 1) {
            continue; // A parameter without a gradient stays as it is.
          }
          for (let part = 0; part < 2; part++) {
            const gradient = values(flat.size, 10 * step + index + part);
            await addGradient(flat, homes[index], gradient);
          }
        }
        await device.scope(async () => {
          norms.push(await gradNorm(flats));
          await scaleGradients(flats, device.full([1], 0.3));
          await optimizer.step({ gradScale: device.full([1], 0.7) });
        });
        optimizer.zeroGrad();
      }
      if (isAtHome) {
        expect(device.memory().live.total).toBe(0);
      }
      const states = await Promise.all(flats.map((flat) => optimizer.readFlatState(flat)));
      const params = await Promise.all(
        flats.map((flat, index) => homes[index]?.parameter.read(0, flat.size * 4) ?? bytesOf(flat)),
      );
      outcomes.push({ norms, states, params });
      if (isAtHome) {
        expect(store.calls.filter((call) => call === 'commit')).toHaveLength(3);
      }
    }
    expect(outcomes[1]).toEqual(outcomes[0]);
    await backend.dispose();
  });

  it.each(['f16', 'bf16'] as const)(
    'parameters in %s are stepped as on the device',
    async (dtype) => {
      const backend = await openBackend();
      const outcomes: Uint8Array[] = [];
      for (const isAtHome of [false, true]) {
        const device = new Device(backend);
        const flat = leaf(device, values(256, 3), dtype);
        const home = isAtHome ? await moveHome(flat, new MapStore()) : undefined;
        const optimizer = new AdamW([flat], { lr: 0.05 });
        for (let step = 0; step < 3; step++) {
          await addGradient(flat, home, values(256, step + 20));
          await optimizer.step();
          optimizer.zeroGrad();
        }
        outcomes.push(await (home?.parameter.read(0, 512) ?? bytesOf(flat)));
      }
      expect(outcomes[1]).toEqual(outcomes[0]);
      await backend.dispose();
    },
  );
});

describe.each([
  ...BACKENDS.map(([name, openBackend]) => ({ name, openBackend, reason: undefined })),
  { name: 'webgpu', openBackend: openWebGpu, reason: noWebGpu },
])('computed on the host as on $name', ({ openBackend, reason }) => {
  const why = reason === undefined ? '' : ` (${reason})`;

  it.skipIf(reason !== undefined).each(['f16', 'bf16'] as const)(
    `copies in %s for gathers are those of its cast${why}`,
    async (dtype) => {
      const backend = await openBackend();
      const device = new Device(backend);
      const bits = new Uint32Array(2 ** 17);
      // The bits cover every sign, every exponent and the leading bits of the mantissa, exactly and
      // close to where rounding decides.
      const ends = [0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001];
      for (let i = 0; i < bits.length; i++) {
        bits[i] = ((i & 0xffff) << 16) | ends[(i * 7 + (i >> 16)) % ends.length]!;
      }
      const floats = new Float32Array(bits.buffer).filter((value) => !Number.isNaN(value));
      const flat = leaf(device, floats);
      const output = device.storage(flat.size, dtype, 'staging');
      output.fill();
      backend.run('cast', { x: flat.view(), out: output.view() });
      const expected = (await output.read()).subarray(0, flat.size * 2);
      const home = await moveHome(flat, new MapStore());
      expect(Buffer.compare(await home.parameter.readForLoad(dtype), expected)).toBe(0);
      await backend.dispose();
    },
  );

  it.skipIf(reason !== undefined).each(['f32', 'f16', 'bf16'] as const)(
    `reduced gradients in %s add up as on it${why}`,
    async (dtype) => {
      const backend = await openBackend();
      const device = new Device(backend);
      const size = 1024;
      for (const scale of [1, 0.5, 0.375]) {
        const flat = leaf(device, values(size));
        const home = await moveHome(flat, new MapStore());
        let total: Tensor | undefined;
        for (let part = 0; part < 3; part++) {
          const reduced = values(size, part + 40);
          reduced.fill(-0, 0, 9);
          const storage = storageOf(device, reduced, dtype);
          const scaled = device.zeros([size]);
          if (scale === 1 && dtype === 'f32') {
            scaled.storage.write(await storage.read());
          } else {
            backend.run('affine', { x: storage.view(), out: scaled.view(), scale, shift: 0 });
          }
          if (total === undefined) {
            total = scaled;
          } else {
            device.addInPlace(total, scaled);
          }
          // The first part comes in as wire bytes, the second from the device.
          if (part === 1) {
            await home.gradient.addStorage(storage, scale);
          } else {
            await home.gradient.addBytes((await storage.read()).slice(), dtype, scale);
          }
        }
        expect(await home.gradient.read(), `scale ${scale}`).toEqual(await bytesOf(total!));
      }
      await backend.dispose();
    },
  );
});

describe('a flat at home', () => {
  it('is not passed over by norms', async () => {
    const { flat, home } = await flatAtHome();
    const norm = async () => (await clipGradNorm([flat], 1)).norm.item();
    expect(await norm()).toBe(0);
    await addGradient(flat, home, values(8));
    expect(await norm()).toBe(Math.fround(await gradNorm([flat])));
    expect(await norm()).toBeGreaterThan(0);
    expect(flatHomeOf(flat)).toBe(home);
  });

  it('forgets a gradient that is cleared while an addition is under way', async () => {
    const { flat, home } = await flatAtHome();
    const late = home.gradient.addBytes(
      new Uint8Array(new Float32Array(8).fill(9).buffer),
      'f32',
      1,
    );
    new Sgd([flat]).zeroGrad();
    await late;
    expect(home.hasGradient).toBe(false);
    await addGradient(flat, home, values(8));
    expect(await home.gradient.read()).toEqual(new Uint8Array(Float32Array.from(values(8)).buffer));
  });

  it('forgets one that is cleared in the middle of an addition', async () => {
    const { flat, home, store } = await flatAtHome();
    await addGradient(flat, home, values(8, 2));
    store.failing = (call) => {
      if (call === 'read one/gradient') {
        new Sgd([flat]).zeroGrad();
      }
      return false;
    };
    // This reads the first value, which is cleared meanwhile.
    await addGradient(flat, home, values(8, 3));
    expect(home.hasGradient).toBe(false);
  });

  it('keeps what the store refuses, until the store takes it', async () => {
    const { flat, home, store } = await flatAtHome();
    const optimizer = new AdamW([flat], { lr: 0.1 });
    await addGradient(flat, home, values(8, 4));
    store.failing = (call) => call.startsWith('write');
    await expect(optimizer.step()).rejects.toThrow(/refused: write one\//);
    expect(store.calls).not.toContain('commit');
    expect(home.hasUnsaved).toBe(true);
    const before = store.values.get('one/parameter');
    await expect(home.parameter.read(0, 32)).rejects.toThrow(/failed half-way. Finish it first/);
    store.failing = () => false;
    const state = await optimizer.readFlatState(flat); // This finishes the step and sees all of it.
    expect(state!.runs[0]!.step).toBe(1);
    expect(home.hasUnsaved).toBe(false);
    expect(await home.parameter.read(0, 32)).not.toEqual(before);
    expect(store.values.get('one/expAvg')).toEqual(state!.tensors.get('expAvg'));
    expect(store.calls.filter((call) => call === 'commit')).toHaveLength(1);
  });

  it('a read that begins beside a write sees what was written, though the store refuses it', async () => {
    const { home, store } = await flatAtHome();
    store.failing = (call) => call === 'write one/parameter';
    const given = new Uint8Array(Float32Array.from(values(8, 9)).buffer);
    const written = home.parameter.write(given, 0);
    const read = home.parameter.read(0, 32);
    await expect(written).rejects.toThrow('refused: write one/parameter');
    expect(await read).toEqual(given);
    expect(store.values.get('one/parameter')).not.toEqual(given);
  });

  it('a parameter is written in parts, whole words or not', async () => {
    const { home } = await flatAtHome();
    await home.parameter.write(new Uint8Array([1, 2, 3]), 5);
    const expected = new Uint8Array(Float32Array.from(values(8)).buffer);
    expected.set([1, 2, 3], 5);
    expect(await home.parameter.read(0, 32)).toEqual(expected);
    expect(await home.parameter.read(4, 6)).toEqual(expected.subarray(4, 10));
  });

  it('carries optimizer state in and out by name', async () => {
    const { flat, home, store } = await flatAtHome();
    const optimizer = new AdamW([flat], { lr: 0.1 });
    expect(await optimizer.readFlatState(flat)).toBeUndefined();
    await addGradient(flat, home, values(8, 4));
    await optimizer.step();
    const dict = await optimizer.stateDict([['p', flat]]);
    expect(dict.state.get('p')!.tensors.get('expAvg')!.data).toEqual(
      store.values.get('one/expAvg'),
    );

    const next = await flatAtHome();
    const resumed = new AdamW([next.flat], { lr: 0.1 });
    await resumed.loadStateDict(dict, [['p', next.flat]]);
    expect(await resumed.readFlatState(next.flat)).toEqual(await optimizer.readFlatState(flat));
    expect(next.flat.device.memory().live.optimizer).toBe(0);
  });

  async function flatAtHome(store = new MapStore()) {
    const flat = leaf(new Device(createReferenceBackend()), values(8));
    return { flat, home: await moveHome(flat, store), store };
  }
});

/** Returns a trainable one-dimensional leaf that owns its storage. */
function leaf(device: Device, data: ArrayLike<number>, dtype: DType = 'f32'): Tensor {
  const storage = storageOf(device, data, dtype);
  storage.tag = 'parameter';
  return new Tensor(storage, [data.length], 0, true);
}

describe('one owner at a time', () => {
  it('a host buffer is given back once: given twice it would have two users', () => {
    const buffers = new HostBuffers();
    const bytes = buffers.take(8);
    buffers.give(bytes);
    expect(() => buffers.give(bytes)).toThrow(/^host buffers: expected one that was taken/);
    expect(() => buffers.give(new Uint8Array(8))).toThrow(/^host buffers: expected/);
    expect(buffers.takenBytes).toBe(0);
    expect(buffers.take(8).buffer).toBe(bytes.buffer);
    expect(buffers.take(8).buffer).not.toBe(bytes.buffer);
  });

  it('host buffers of other sizes share memory: never more than was taken at once', () => {
    const buffers = new HostBuffers();
    const round = (...sizes: number[]) => {
      const taken = sizes.map((size) => buffers.take(size));
      expect(taken.map(({ byteLength }) => byteLength)).toEqual(sizes);
      expect(buffers.heldBytes).toBe(buffers.peakTakenBytes);
      taken.forEach((bytes) => void buffers.give(bytes));
    };
    const step = () => {
      round(800, 400); // These are a shard and its half on their way to the device.
      round(200, 200, 100, 200); // These are gradients of smaller layers.
      round(800, 800, 800, 800); // These are the four parts that a step brings.
    };
    step();
    const { numMade } = buffers;
    step();
    step();
    expect(buffers.numMade).toBe(numMade);
    expect(buffers.heldBytes).toBe(3200);
  });

  it('host buffers of a dry run are all the same bytes', () => {
    const buffers = new HostBuffers({ isDry: true });
    const taken = [64, 8, 64].map((size) => buffers.take(size));
    expect(new Set(taken.map(({ buffer }) => buffer)).size).toBe(1);
    expect(new Set(taken).size).toBe(3);
    expect(buffers.takenBytes).toBe(136);
    taken.forEach((bytes) => void buffers.give(bytes));
    expect([buffers.takenBytes, buffers.heldBytes, buffers.numMade]).toEqual([0, 0, 0]);
    expect(() => buffers.give(taken[0]!)).toThrow(/^host buffers: expected one that was taken/);
  });

  it('host buffers in use never overlap, in whatever order they come and go', () => {
    const buffers = new HostBuffers();
    const taken: Uint8Array[] = [];
    let state = 1;
    const next = (below: number) => {
      state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
      return (state >>> 8) % below;
    };
    for (let i = 0; i < 3000; i++) {
      if (taken.length < 12 && next(2) === 0) {
        const bytes = buffers.take(1 + next(300));
        expect(bytes.byteOffset % 8).toBe(0);
        taken.push(bytes.fill(i % 251));
      } else if (taken.length > 0) {
        const [bytes] = taken.splice(next(taken.length), 1) as [Uint8Array];
        expect(new Set(bytes).size).toBe(1);
        buffers.give(bytes);
      }
      if (i % 100 === 0) {
        buffers.sweep();
      }
    }
    taken.forEach((bytes) => void buffers.give(bytes));
    expect(buffers.takenBytes).toBe(0);
    for (let i = 0; i < 3; i++) {
      buffers.sweep();
    }
    expect(buffers.heldBytes).toBe(0);
  });

  it('buffers stay for the sweep after their last use, and go with the next', () => {
    const buffers = new HostBuffers();
    const held = [];
    for (const isUsed of [true, false, true, false, false, false]) {
      if (isUsed) {
        buffers.give(buffers.take(9));
      }
      buffers.sweep();
      held.push(buffers.heldBytes);
    }
    expect(held).toEqual([16, 16, 16, 16, 0, 0]);
    expect([buffers.numMade, buffers.peakTakenBytes]).toEqual([1, 16]);
  });

  async function home() {
    const device = new Device(createReferenceBackend());
    const store = new MapStore();
    const buffers = new HostBuffers();
    const flat = device.tensor(values(64, 1), [64], { requiresGrad: true });
    flat.name = 'layer';
    const optimizer = new AdamW([flat], { lr: 0.1 });
    const rest = await moveHome(flat, store, { hostBuffers: buffers });
    await addGradient(flat, rest, values(64, 2));
    return { store, buffers, flat, optimizer, rest };
  }

  it.each(['parameter', 'expAvg', 'gradient'])(
    'a visit whose read of %s fails gives all its buffers back',
    async (part) => {
      const { store, buffers, optimizer } = await home();
      await optimizer.step();
      store.failing = (call) => call === `read one/${part}`;
      await expect(optimizer.step()).rejects.toThrow(`refused: read one/${part}`);
      expect(buffers.takenBytes).toBe(0);
    },
  );

  it('steps and norms are refused while another one is under way, and nothing is stepped', async () => {
    const { flat, optimizer, rest } = await home();
    const before = await rest.parameter.read(0, 256);
    const norm = gradNorm([flat]);
    await expect(optimizer.step()).rejects.toThrow(
      "optimizer.step: expected the parameters of 'layer' at rest, got gradient norm under way. Await it first.",
    );
    await norm;
    expect(await rest.parameter.read(0, 256)).toEqual(before);
    const stepping = optimizer.step();
    await expect(optimizer.step()).rejects.toThrow(/got optimizer.step under way/);
    await expect(gradNorm([flat])).rejects.toThrow(/got optimizer.step under way/);
    await stepping;
    expect(optimizer.stateOf(flat)?.runs[0]?.step).toBe(1);
    await optimizer.step(); // The first step has ended, so another may begin.
    expect(optimizer.stateOf(flat)?.runs[0]?.step).toBe(2);
  });

  it('a backward whose gradients are not all there is an owner', async () => {
    const { flat, optimizer } = await home();
    const { device } = flat;
    await device.scope(async () => {
      const x = device.tensor([2], [1], { requiresGrad: true });
      const y = square(x);
      device.beforeGradientOf(y, async () => {
        await expect(optimizer.step()).rejects.toThrow(/got backward under way/);
      });
      await y.backward();
    });
    await optimizer.step();
    expect(optimizer.stateOf(flat)?.runs[0]?.step).toBe(1);
  });
});

function storageOf(device: Device, data: ArrayLike<number>, dtype: DType) {
  const source = device.storage(data.length, 'f32', 'staging');
  source.fill();
  source.write(new Uint8Array(Float32Array.from(data).buffer));
  const storage = device.storage(data.length, dtype, 'staging');
  storage.fill();
  device.backend.run('cast', { x: source.view(), out: storage.view() });
  source.release();
  return storage;
}

async function bytesOf(tensor: Tensor): Promise<Uint8Array> {
  return tensor.storage.read();
}

/** Gives a flat a home and moves its values there. */
async function moveHome(
  flat: Tensor,
  store: MapStore,
  { name = 'one', hostBuffers = new HostBuffers() } = {},
): Promise<StoredFlat> {
  const home = new StoredFlat(
    flat,
    { use: storeUseOf(store), rests: 'all', resume: false },
    () => hostBuffers,
  );
  await home.open(name);
  await home.parameter.write(await flat.storage.read(), 0);
  flat.storage.free();
  setFlatHome(flat, home);
  return home;
}

/** Adds a gradient to the one that the flat's home keeps. */
async function addGradient(
  flat: Tensor,
  home: StoredFlat | undefined,
  gradient: readonly number[],
): Promise<void> {
  const bytes = new Uint8Array(Float32Array.from(gradient).buffer);
  if (home !== undefined) {
    return home.gradient.addBytes(bytes, 'f32', 1);
  }
  const { device } = flat;
  const storage = storageOf(device, gradient, 'f32');
  storage.tag = 'gradient';
  const added = new Tensor(storage, [flat.size]);
  if (flat.grad === undefined) {
    flat.grad = added;
    return;
  }
  device.addInPlace(flat.grad, added);
  storage.release();
}
