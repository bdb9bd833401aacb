// These tests cover sums over ranks that share hosts: the order of addition, equal bits in every
// run, and the bytes that cross between hosts.

import { createMemoryGroup, Endpoint, type ProcessGroup } from '@shardweave/collectives';
import { byteSize, fromF32Array, RankSum, type ReduceOp } from '@shardweave/dtypes';
import { describe, expect, it } from 'vitest';

type FloatDType = 'f32' | 'f16' | 'bf16';
type Dtype = FloatDType | 'i32' | 'u8';

const made = new Map<string, Uint8Array>();

/**
 * Returns values whose magnitudes differ by more than f32 has bits, so that the order of addition
 * shows in the result.
 */
function elements(rank: number, count: number, dtype: Dtype): Uint8Array {
  const key = `${rank} ${count} ${dtype}`;
  const values = made.get(key) ?? makeElements(rank, count, dtype);
  made.set(key, values);
  return values.slice();
}

function makeElements(rank: number, count: number, dtype: Dtype): Uint8Array {
  let state = rank * 7919 + count;
  const next = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state;
  };
  if (dtype === 'i32' || dtype === 'u8') {
    return Uint8Array.from({ length: count * byteSize(dtype) }, () => next() >>> 24);
  }
  const value = () => ((next() % 513) - 256) * 2 ** ((next() % 19) - 14);
  const values = Array.from({ length: count }, value);
  return fromF32Array(values, dtype);
}

/**
 * Adds all parts in the documented order, in f32: first each host's ranks in order, then the hosts
 * in the order of their lowest rank.
 */
async function expected(
  parts: readonly Uint8Array[],
  hosts: readonly number[],
  dtype: Dtype,
  op: ReduceOp,
) {
  const isFloat = dtype !== 'i32' && dtype !== 'u8';
  const sumDtype = isFloat ? 'f32' : dtype;
  const count = parts[0]!.byteLength / byteSize(dtype);
  const reducer = await RankSum.create();
  const sums = [...new Set(hosts)].map(async (host) => {
    const sum = new Uint8Array(count * byteSize(sumDtype));
    const ofHost = parts.filter((_, rank) => hosts[rank] === host);
    const partial = op === 'mean' ? 'sum' : op;
    await reducer.reduce(ofHost, sum, { dtype: sumDtype, inputDtype: dtype, op: partial });
    return sum;
  });
  const output = new Uint8Array(count * byteSize(dtype));
  const divisor = parts.length;
  await reducer.reduce(await Promise.all(sums), output, {
    dtype,
    inputDtype: sumDtype,
    op,
    divisor,
  });
  return output;
}

const isEqual = (a: Uint8Array, b: Uint8Array) => Buffer.compare(a, b) === 0;

const HOSTS = [
  [0, 0, 1, 1],
  [0, 1, 0, 1, 2],
  [5, 5, 5, 3],
  [0, 1, 1, 1, 1, 1, 1, 1],
] as const;

describe.each(HOSTS.map((hosts) => ({ hosts })))('hosts $hosts', ({ hosts }) => {
  const worldSize = hosts.length;
  const ranks = Array.from({ length: worldSize }, (_, rank) => rank);

  it.each(['f32', 'f16', 'bf16', 'i32', 'u8'] as const)(
    'adds %s in the stated order',
    async (dtype) => {
      const groups = createMemoryGroup(worldSize, { hosts });
      for (const op of ['sum', 'mean', 'max'] as const) {
        for (const count of [1, 7, 20_011]) {
          const parts = ranks.map((rank) => elements(rank, count, dtype));
          const sum = await expected(parts, hosts, dtype, op);
          const reduced = await Promise.all(
            groups.map(async (group) => {
              const inPlace = parts[group.rank]!.slice();
              await group.allReduce(inPlace, inPlace, { dtype, op });
              return inPlace;
            }),
          );
          expect(
            reduced.every((bytes) => isEqual(bytes, sum)),
            `${op} of ${count}`,
          ).toBe(true);
        }
      }
      await Promise.all(groups.map((group) => group.close()));
    },
  );

  it('adds in that order in many rounds', async () => {
    const groups = createMemoryGroup(worldSize, { hosts });
    const count = 60_000 * worldSize + 1;
    const parts = ranks.map((rank) => elements(rank, count, 'f32'));
    const sum = await expected(parts, hosts, 'f32', 'sum');
    await Promise.all(
      groups.map((group) => {
        const own = parts[group.rank]!;
        return group.allReduce(own, own, { dtype: 'f32', op: 'sum' });
      }),
    );
    expect(parts.every((bytes) => isEqual(bytes, sum))).toBe(true);
    await Promise.all(groups.map((group) => group.close()));
  });

  it('scatters uneven parts of the same sums', async () => {
    const groups = createMemoryGroup(worldSize, { hosts });
    const counts = ranks.map((rank) => (rank === 1 ? 0 : 5_000 * rank + 3));
    const total = counts.reduce((sum, count) => sum + count, 0);
    const inputs = ranks.map((rank) => elements(rank, total, 'bf16'));
    const sum = await expected(inputs, hosts, 'bf16', 'sum');
    const parts = await Promise.all(
      groups.map(async (group) => {
        const output = new Uint8Array(counts[group.rank]! * 2);
        const options = { dtype: 'bf16', op: 'sum', counts } as const;
        await group.reduceScatter(inputs[group.rank]!, output, options);
        return output;
      }),
    );
    expect(isEqual(Buffer.concat(parts), sum)).toBe(true);
    await Promise.all(groups.map((group) => group.close()));
  });
});

describe('bytes between hosts', () => {
  /** Counts the payload bytes from ranks below 4 to the others, which is from host 0 to host 1. */
  async function crossing(hosts: readonly number[] | undefined): Promise<number> {
    let bytes = 0;
    const send = Endpoint.prototype.onMessage;
    const spy = function (this: Endpoint, ...[from, header]: Parameters<typeof send>) {
      if (from < 4 && this.rank >= 4) {
        bytes += header.byteLength;
      }
      return send.call(this, from, header);
    };
    Endpoint.prototype.onMessage = spy;
    try {
      const groups = createMemoryGroup(8, hosts && { hosts });
      await Promise.all(
        groups.map((group: ProcessGroup) => {
          const buffer = new Uint8Array(8 * 2 ** 16);
          return group.allReduce(buffer, buffer, { dtype: 'f32', op: 'sum' });
        }),
      );
      await Promise.all(groups.map((group) => group.close()));
    } finally {
      Endpoint.prototype.onMessage = send;
    }
    return bytes;
  }

  it('are those of one rank, not of all', async () => {
    const partBytes = 2 ** 16;
    // Without hosts, each of four ranks sends four foreign parts, and each of four owners sends its
    // result to four ranks.
    expect(await crossing(undefined)).toBe(2 * 16 * partBytes);
    // With hosts, one sum crosses for each of four foreign parts, and each of four results crosses
    // once.
    expect(await crossing([0, 0, 0, 0, 1, 1, 1, 1])).toBe(2 * 4 * partBytes);
  });
});
