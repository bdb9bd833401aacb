// Random programs over the gradient of a flat in a store: additions in each dtype, clearings of all
// and of places, holds, and a store that refuses writes. They are compared with a list of numbers.

import { fromF32Array } from '@shardweave/dtypes';
import { HostBuffers } from '@shardweave/nn/flat';
import { expect, it } from 'vitest';
import { bytesOf, makeFlat } from './support/flats.js';
import { MapStore } from './support/map-store.js';
import { makeDevice, values } from './support/support.js';

const SIZE = 8;

it.each([1, 2, 3, 4, 5, 6])(
  'a gradient in a store is that of its program, number %i',
  async (seed) => {
    const store = new MapStore();
    const buffers = new HostBuffers();
    const { home, flat } = await makeFlat(makeDevice(), store, { size: SIZE, buffers });
    const { gradient } = home!;
    const dice = values(400, seed).map((value) => Math.floor((value + 1) * 500));
    const roll = (sides: number) => dice.pop()! % sides;
    let expected: number[] | undefined;
    let holds: (() => void)[] = [];
    let due: { isAll: boolean; places: { start: number; length: number }[] } | undefined;
    let isUnsaved = false;
    const zero = (places: readonly { start: number; length: number }[]) => {
      for (const { start, length } of places) {
        expected?.fill(0, start, start + length);
      }
    };
    const clear = (places?: { start: number; length: number }[]) => {
      home!.clearGradient(places);
      if (holds.length > 0) {
        due = {
          isAll: due?.isAll === true || places === undefined,
          places: [...(due?.places ?? []), ...(places ?? [])],
        };
      } else if (places === undefined) {
        [expected, isUnsaved] = [undefined, false];
      } else {
        zero(places);
      }
    };
    for (let turn = 0; turn < 40; turn++) {
      const { version } = gradient;
      const kind = roll(9);
      let isChanged = true;
      if (kind < 4) {
        const dtype = (['f32', 'f16', 'bf16'] as const)[roll(3)]!;
        const scale = [1, 0.5, -2][roll(3)]!;
        const numbers = Array.from({ length: SIZE }, (_, i) => ((i + turn) % 5) - 2);
        const isRefused = kind === 3;
        store.failing = (call) => isRefused && call.startsWith('write');
        const bytes = fromF32Array(Float32Array.from(numbers), dtype);
        const added = gradient.addBytes(bytes, dtype, scale);
        await (isRefused ? expect(added).rejects.toThrow('refused') : added);
        store.failing = () => false;
        isUnsaved = isRefused;
        expected = numbers.map((value, i) => value * scale + (expected?.[i] ?? 0));
        bytes.fill(0x55); // the array is the caller's again
      } else if (kind === 4) {
        isChanged = holds.length === 0;
        clear();
      } else if (kind === 5) {
        isChanged = holds.length === 0;
        clear([{ start: roll(4), length: roll(5) }]);
      } else if (kind === 6) {
        isChanged = false;
        holds.push(home!.holdGradient());
      } else if (kind === 7) {
        const end = holds.pop();
        end?.();
        end?.(); // a second call does nothing
        isChanged = holds.length === 0 && end !== undefined && due !== undefined;
        if (isChanged) {
          const { isAll, places } = due!;
          due = undefined;
          holds = [];
          if (isAll) {
            [expected, isUnsaved] = [undefined, false];
          } else {
            zero(places);
          }
        }
      } else {
        isChanged = false;
        await home!.flush();
        isUnsaved = false;
      }
      expect(gradient.version !== version).toBe(isChanged);
      expect(home!.hasGradient).toBe(expected !== undefined);
      expect(await gradient.read()).toEqual(
        expected && bytesOf(expected.map((value) => value + 0)),
      );
      expect(home!.hasUnsaved).toBe(isUnsaved);
      expect(buffers.takenBytes).toBe(0);
      if (expected !== undefined) {
        const tail = new Uint8Array(4 * (SIZE - 3));
        await gradient.stored.read(tail, 4 * 3);
        expect(tail).toEqual(bytesOf(expected.slice(3).map((value) => value + 0)));
      }
    }
    flat.dispose();
  },
);
