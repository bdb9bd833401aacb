// One step as one rank calls it: its buffers, the call, and the check of its result.

import type { DType } from '@shardweave/dtypes';
import type { ProcessGroup } from '../../group/process-group.js';
import { checkBytes } from '../harness.js';
import type { CollectiveStep, MessageStep, Step } from './random-program.js';
import { bytesPerElement, type ReferenceData } from './reference-data.js';

export interface StepCall {
  /**
   * All memory that the call may touch. Before the call settles it belongs to the call, and then to
   * the caller.
   */
  readonly buffers: readonly Uint8Array[];
  run(): Promise<unknown>;
  /** Throws where a buffer is not as it must be after `run` has resolved. */
  check(): void;
}

/** The byte that outputs hold before the call. */
const BLANK = 0x77;

/**
 * A call of a step that is neither a split nor between other ranks. `hosts` are those of the
 * group's ranks, where sums are combined within hosts first.
 */
export function prepareCall(
  step: Exclude<Step, { kind: 'split' }>,
  group: ProcessGroup,
  data: ReferenceData,
  hosts: readonly number[] | undefined,
): StepCall {
  switch (step.kind) {
    case 'barrier':
      return { buffers: [], run: () => group.barrier(), check: () => {} };
    case 'message':
      return prepareMessage(step, group, data);
    case 'collective':
      return PREPARE[step.operation](step, group, data, hosts);
  }
}

type Prepare = (
  step: CollectiveStep,
  group: ProcessGroup,
  data: ReferenceData,
  hosts: readonly number[] | undefined,
) => StepCall;

const PREPARE: Readonly<Record<CollectiveStep['operation'], Prepare>> = {
  allGather: (step, group, data) => {
    const { parts, starts, options } = layoutOf(step, group);
    const own = data.part(group.rank, 0, parts[group.rank]!);
    const output = blank(starts.at(-1)!);
    const place = output.subarray(starts[group.rank], starts[group.rank + 1]);
    const input = step.isInPlace ? place : own.slice();
    input.set(own);
    return {
      buffers: [input, output],
      run: () => group.allGather(input, output, options),
      check: () => {
        checkBytes(input, own, 'input');
        parts.forEach((part, r) => {
          const there = output.subarray(starts[r], starts[r + 1]);
          checkBytes(there, data.part(r, 0, part), `part ${r}`);
        });
      },
    };
  },
  reduceScatter: (step, group, data, hosts) => {
    const { parts, starts, options } = layoutOf(step, group);
    const input = blank(starts.at(-1)!);
    parts.forEach((part, partIndex) => {
      input.set(data.part(group.rank, partIndex, part), starts[partIndex]);
    });
    const place = input.subarray(starts[group.rank], starts[group.rank + 1]);
    const output = step.isInPlace ? place : blank(place.length);
    return {
      buffers: [input, output],
      run: () => group.reduceScatter(input, output, { ...options, op: step.op }),
      check: () => {
        const own = { ...parts[group.rank]!, dtype: step.dtype as DType, hosts };
        const expected = data.reduction(group.worldSize, group.rank, step.op, own);
        checkBytes(output, expected, 'output');
        parts.forEach((part, partIndex) => {
          if (!step.isInPlace || partIndex !== group.rank) {
            const there = input.subarray(starts[partIndex], starts[partIndex + 1]);
            checkBytes(there, data.part(group.rank, partIndex, part), `input ${partIndex}`);
          }
        });
      },
    };
  },
  allReduce: (step, group, data, hosts) => {
    const options = { ...step, dtype: step.dtype as DType, hosts };
    const own = data.part(group.rank, 0, options);
    const input = own.slice();
    const output = step.isInPlace ? input : blank(input.length);
    return {
      buffers: [input, output],
      run: () => group.allReduce(input, output, { dtype: step.dtype, op: step.op }),
      check: () => {
        checkBytes(output, data.reduction(group.worldSize, 0, step.op, options), 'output');
        if (!step.isInPlace) {
          checkBytes(input, own, 'input');
        }
      },
    };
  },
  broadcast: (step, group, data) => {
    const root = data.part(step.root, 0, step);
    const buffer = group.rank === step.root ? root.slice() : blank(root.length);
    return {
      buffers: [buffer],
      run: () => group.broadcast(buffer, { dtype: step.dtype, root: step.root }),
      check: () => checkBytes(buffer, root, 'buffer'),
    };
  },
  gather: (step, group, data) => {
    const own = data.part(group.rank, 0, step);
    const output = group.rank === step.root ? blank(own.length * group.worldSize) : null;
    const isInPlace = step.isInPlace && output !== null;
    const start = group.rank * own.length;
    const input = isInPlace ? output.subarray(start, start + own.length) : own.slice();
    input.set(own);
    return {
      buffers: output === null ? [input] : [input, output],
      run: () => group.gather(input, output, { dtype: step.dtype, root: step.root }),
      check: () => {
        checkBytes(input, own, 'input');
        for (let r = 0; output !== null && r < group.worldSize; r++) {
          const there = output.subarray(r * own.length, (r + 1) * own.length);
          checkBytes(there, data.part(r, 0, step), `part ${r}`);
        }
      },
    };
  },
};

function prepareMessage(step: MessageStep, group: ProcessGroup, data: ReferenceData): StepCall {
  const { from, to, channel } = step;
  const sent = data.part(from, 1, { ...step, dtype: 'u8' });
  const isSender = group.rank === from;
  const buffer = isSender ? sent.slice() : blank(sent.length);
  return {
    buffers: [buffer],
    run: () =>
      isSender ? group.send(buffer, { to, channel }) : group.recv(buffer, { from, channel }),
    check: () => checkBytes(buffer, sent, 'message'),
  };
}

/** The counts and places of all ranks' parts, and the option that tells them to the group. */
function layoutOf(step: CollectiveStep, group: ProcessGroup) {
  const { dtype, variant } = step;
  const counts = Array.from({ length: group.worldSize }, (_, r) =>
    step.hasUnevenCounts ? [step.count, 0, 7, 2 * step.count][r % 4]! : step.count,
  );
  const starts = [0];
  for (const count of counts) {
    starts.push(starts.at(-1)! + count * bytesPerElement(dtype));
  }
  return {
    parts: counts.map((count) => ({ dtype, count, variant })),
    starts,
    options: step.hasUnevenCounts ? { dtype, counts } : { dtype },
  };
}

function blank(byteLength: number): Uint8Array {
  return new Uint8Array(byteLength).fill(BLANK);
}
