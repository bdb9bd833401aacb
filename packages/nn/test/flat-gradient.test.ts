// Random programs over a flat's gradient are compared with a list of numbers for each leaf: what
// backwards add, also in place, what is cleared before and after the whole is taken, and failures.

import { FlatGradient, flatLayout } from '@shardweave/nn/flat';
import { type DType, type Pass, Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { makeDevice, read, values } from './support/support.js';

/** Leaves with padding behind them, and leaves that fill whole multiples of 128 elements. */
const SIZES = { 'with pads': [5, 0, 128, 3], 'without pads': [128, 256, 128] } as const;
const FORMS = Object.keys(SIZES).flatMap((form) =>
  (['f32', 'bf16'] as const).map((dtype) => ({ form: form as keyof typeof SIZES, dtype })),
);

/** A flat on a device whose memory holds other numbers, with the gradient that its leaves have. */
function flatOf(form: keyof typeof SIZES, dtype: DType) {
  const device = makeDevice();
  const layout = flatLayout(SIZES[form]);
  const flat = device.zeros([layout.elementCount], { requiresGrad: true });
  const leaves = layout.sizes.map((length, i) => {
    const start = layout.offsets[i]!;
    const leaf = new Tensor(device.storage(length, dtype, 'parameter'), [length], 0, true);
    leaf.piece = { flat, start, length };
    return leaf;
  });
  let pass = { reached: new Set(leaves) } as unknown as Pass;
  const gradient = new FlatGradient({
    device,
    layout,
    leaves,
    dtype: () => dtype,
    earlier: () => flat.grad?.storage,
  });
  const soil = () => {
    for (const each of [dtype, 'f32'] as const) {
      const storage = device.storage(layout.elementCount, each, 'gradient');
      storage.fill();
      device.backend.run('fill', { out: storage.view(), value: 7 });
      storage.release();
    }
  };
  const rest = (whole = gradient.take()) => {
    if (whole === undefined || whole === flat.grad?.storage) {
      whole?.release();
      return;
    }
    flat.grad = new Tensor(whole, [layout.elementCount]).markKept();
  };
  return {
    ...{ device, layout, leaves, flat, gradient, soil, rest },
    get pass() {
      return pass;
    },
    nextPass: () => {
      pass = { reached: new Set(leaves) } as unknown as Pass;
    },
  };
}

describe.each(FORMS)('a gradient $form in $dtype', ({ form, dtype }) => {
  it.each([1, 2, 3, 4, 5, 6])('is that of its program, number %i', async (seed) => {
    const made = flatOf(form, dtype);
    const { device, layout, leaves, flat, gradient, soil, rest } = made;
    const dice = values(400, seed).map((value) => Math.floor((value + 1) * 500));
    const roll = (sides: number) => dice.pop()! % sides;
    /** What each leaf has; undefined where it has no gradient. Small whole numbers add exactly. */
    const expected: (number[] | undefined)[] = leaves.map(() => undefined);
    let untaken = new Set<number>();
    for (let turn = 0; turn < 40; turn++) {
      const at = roll(leaves.length);
      const [leaf, size] = [leaves[at]!, layout.sizes[at]!];
      const kind = roll(8);
      if (kind < 4) {
        soil();
        const added = Array.from({ length: size }, (_, i) => ((i + turn) % 5) - 2);
        const into = kind === 0 ? gradient.target(leaf) : undefined;
        const x = device.tensor(added, [size], { dtype });
        if (into === undefined) {
          gradient.accept(leaf, x, made.pass);
        } else {
          device.copyInto(into, x);
          gradient.accept(leaf, into, made.pass);
        }
        expected[at] = added.map((value, i) => value + (expected[at]?.[i] ?? 0));
        untaken.add(at);
      } else if (kind < 6) {
        rest();
        untaken = new Set();
        made.nextPass();
      } else if (kind === 6) {
        gradient.clear([leaf]);
        expected[at] = undefined;
        untaken.delete(at);
      } else if (flat.grad === undefined) {
        gradient.reset(); // a backward that failed
        for (const lost of untaken) {
          expected[lost] = undefined;
        }
        untaken = new Set();
      }
    }
    rest();
    expect(leaves.map((each) => gradient.hasGradient(each))).toEqual(
      expected.map((each) => each !== undefined),
    );
    const whole = Array.from({ length: layout.elementCount }, () => 0);
    expected.forEach((each, i) => {
      whole.splice(layout.offsets[i]!, each?.length ?? 0, ...(each ?? []));
    });
    const found = flat.grad === undefined ? whole.map(() => 0) : await read(flat.grad);
    expect(found.map((value) => value + 0)).toEqual(whole);
    gradient.clear(leaves);
    expect(flat.grad).toBeUndefined();
    expect(device.ledger.live().gradient).toBe(0);
  });
});

it('a sum that begins after one that went on was cleared has zeros where nothing came', async () => {
  const made = flatOf('without pads', 'f32');
  const { device, leaves, layout, flat, gradient, soil, rest } = made;
  const add = (at: number) => {
    soil();
    gradient.accept(leaves[at]!, device.full([layout.sizes[at]!], 1), made.pass);
    rest();
    made.nextPass();
  };
  add(0);
  add(0); // goes on in the first one's storage
  gradient.clear(leaves);
  add(2);
  const first = layout.offsets[2]!;
  const expected = Array.from({ length: layout.elementCount }, (_, i) => Number(i >= first));
  expect(await read(flat.grad!)).toEqual(expected);
  gradient.clear(leaves);
});
