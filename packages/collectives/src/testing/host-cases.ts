// Conformance: sums of ranks that share hosts, in the order of Note [hierarchical order].

import {
  byteSize,
  isFloat,
  type ReduceDType,
  type ReduceOp,
  reducePartsPlain,
} from '@shardweave/dtypes';
import type { ProcessGroup } from '../group/process-group.js';
import { allRanks } from './data-cases.js';
import { type ConformanceCase, checkBytes, onRanks } from './harness.js';
import { patternElements } from './patterns.js';

/** The hosts by world size; groups of the other sizes have nothing to save. */
const HOSTS: Readonly<Record<number, readonly number[]>> = {
  3: [0, 1, 0],
  4: [0, 0, 1, 1],
  8: [2, 2, 2, 0, 0, 0, 0, 1],
};

export const hostCases: readonly ConformanceCase[] = [
  {
    name: 'sums by hosts are those of the stated order',
    worldSizes: [3, 4, 8],
    run: (harness, worldSize) => {
      const hosts = HOSTS[worldSize]!;
      const check = async (group: ProcessGroup) => {
        await checkSums(group, hosts, 7, 'bf16', 'mean');
        await checkSums(group, hosts, 20_011, 'f32', 'sum');
        await checkSums(group, hosts, 9001, 'u8', 'sum');
        await checkSums(group, hosts, 9001, 'f16', 'max');
      };
      return onRanks(harness, worldSize, check, { hosts });
    },
  },
];

async function checkSums(
  group: ProcessGroup,
  hosts: readonly number[],
  count: number,
  dtype: ReduceDType,
  op: ReduceOp,
): Promise<void> {
  const inputs = allRanks(group).map((r) => patternElements(r, count, dtype, count));
  const expected = sumByHosts(inputs, hosts, dtype, op);
  const buffer = inputs[group.rank]!.slice();
  await group.allReduce(buffer, buffer, { dtype, op });
  checkBytes(buffer, expected, `allReduce ${op} of ${count} ${dtype}`);
  const base = Math.floor(count / group.worldSize);
  const counts = allRanks(group).map((r) =>
    r === 0 ? count - base * (group.worldSize - 1) : base,
  );
  const part = new Uint8Array(counts[group.rank]! * byteSize(dtype));
  await group.reduceScatter(inputs[group.rank]!, part, { dtype, op, counts });
  const start = group.rank === 0 ? 0 : (counts[0]! + (group.rank - 1) * base) * byteSize(dtype);
  const expectedPart = expected.subarray(start, start + part.length);
  checkBytes(part, expectedPart, `reduceScatter ${op} of ${count} ${dtype}`);
}

function sumByHosts(
  inputs: readonly Uint8Array[],
  hosts: readonly number[],
  dtype: ReduceDType,
  op: ReduceOp,
): Uint8Array {
  const count = inputs[0]!.length / byteSize(dtype);
  const sumDtype = isFloat(dtype) ? 'f32' : dtype;
  const sums = [...new Set(hosts)].map((host) => {
    const sum = new Uint8Array(count * byteSize(sumDtype));
    const ofHost = inputs.filter((_, rank) => hosts[rank] === host);
    const opOfHost = op === 'mean' ? 'sum' : op;
    reducePartsPlain(ofHost, sum, { dtype: sumDtype, inputDtype: dtype, op: opOfHost });
    return sum;
  });
  const output = new Uint8Array(inputs[0]!.length);
  const divisor = inputs.length;
  reducePartsPlain(sums, output, { dtype, inputDtype: sumDtype, op, divisor });
  return output;
}
