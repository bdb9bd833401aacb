// Sums of groups of rows by themselves: what is held after which call, and what a failure leaves.

import type { TreeNode } from '@shardweave/dtypes/tree';
import { GroupSums } from '@shardweave/nn/flat';
import { describe, expect, it } from 'vitest';

/** The sums of three groups, each of which comes in a call of its own, and so does nothing. */
const sumsOf = (options: { readonly isDry?: boolean } = {}) => {
  const calls: TreeNode[][] = [0, 1, 2].map((first) => [{ first, end: first + 1 }]);
  return new GroupSums<object>({ groups: 3, arrivals: [...calls, []], ...options });
};
const bytesOf = (...values: number[]) => new Uint8Array(Float32Array.from(values).buffer);
const floats = (bytes: Uint8Array) => [...new Float32Array(bytes.slice().buffer)];
const key = {};

function push(sums: GroupSums<object>, value: number, call = sums.present, of = key) {
  return sums.push(of, call, { byteLength: 8, parts: [bytesOf(value, -value)] });
}

describe('sums of groups', () => {
  it('are whole with the last group, and given back behind the last call', async () => {
    const sums = sumsOf();
    expect(sums.heldOf(key)).toBeUndefined();
    for (const [index, value] of [1, 2, 4].entries()) {
      expect(sums.present).toMatchObject({ index, isLast: false });
      await push(sums, value);
      const held = sums.heldOf(key)!;
      expect(held.isWhole).toBe(index === 2);
      expect(sums.partly()).toEqual(index === 2 ? [] : [key]);
      if (index === 2) {
        expect([floats(held.sums), floats(held.place)]).toEqual([
          [7, -7],
          [7, -7],
        ]);
      }
      sums.endCall();
    }
    expect(sums.present).toMatchObject({ index: 3, isLast: true, nodes: [] });
    sums.endCall();
    expect([sums.present.index, sums.heldOf(key), sums.partly(), sums.isTorn]).toEqual([
      ...[0, undefined, [], false],
    ]);
    expect(sums.groups).toBe(3);
  });

  it('are told apart by their keys, of which one may have less', async () => {
    const sums = sumsOf();
    const other = {};
    await push(sums, 1, sums.present, other);
    await push(sums, 1);
    sums.endCall();
    await push(sums, 5);
    sums.endCall();
    await push(sums, 9);
    expect(floats(sums.heldOf(key)!.sums)).toEqual([15, -15]);
    expect(floats(sums.heldOf(other)!.sums)).toEqual([1, -1]);
    expect(sums.partly()).toEqual([other]);
  });

  it('a call that has failed meanwhile brings nothing', async () => {
    const sums = sumsOf();
    const { present } = sums;
    const late = push(sums, 1);
    sums.fail();
    await late;
    expect([sums.present === present, sums.heldOf(key), sums.isTorn]).toEqual([
      ...[false, undefined, false],
    ]);
    await push(sums, 3);
    await push(sums, 5, present);
    expect(floats(sums.heldOf(key)!.sums)).toEqual([3, -3]);
  });

  it('are torn by a failure after the first call, until they are cleared', async () => {
    const sums = sumsOf();
    await push(sums, 1);
    sums.endCall();
    await push(sums, 2);
    sums.fail();
    expect([sums.isTorn, sums.present.index, sums.heldOf(key)]).toEqual([true, 0, undefined]);
    sums.fail();
    expect(sums.isTorn).toBe(true);
    await push(sums, 4);
    sums.clear();
    expect([sums.isTorn, floats(sums.heldOf(key)!.sums)]).toEqual([false, [4, -4]]);
    sums.endCall();
    sums.clear();
    expect([sums.isTorn, sums.present.index, sums.heldOf(key)]).toEqual([false, 0, undefined]);
  });

  it('a dry run holds them in the same places', async () => {
    const [sums, dry] = [sumsOf(), sumsOf({ isDry: true })];
    for (let call = 0; call < 3; call++) {
      await push(sums, 1);
      await push(dry, 1);
      const [held, found] = [sums.heldOf(key)!, dry.heldOf(key)!];
      expect([found.sums.byteLength, found.place.byteLength, found.isWhole]).toEqual([
        ...[held.sums.byteLength, held.place.byteLength, held.isWhole],
      ]);
      sums.endCall();
      dry.endCall();
    }
  });
});
