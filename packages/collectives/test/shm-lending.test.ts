// Memory that a rank lends over shm is its own again when its call has rejected. A rank that was
// reading it then discards what it read: its own call rejects too, and never delivers changed
// bytes.

import { connectShmEndpoint, createShmJob } from '@shardweave/collectives/shm';
import { describe, expect, it } from 'vitest';
import { systemClock } from '../src/clock.js';
import { Turns } from '../src/endpoint/turns.js';
import type { MessageHeader, TransportListener } from '../src/transport.js';
import { ShmTransport } from '../src/transports/shm/shm-transport.js';

const SUM = { dtype: 'f32', op: 'sum' } as const;
const LENGTH = 100_000;

describe('memory that its rank has back', () => {
  it('is in no sum', async () => {
    let isSpoilt = false;
    const joined = await Promise.all(
      createShmJob(2).map((handle) =>
        connectShmEndpoint(handle, {
          // Rank 1 reads rank 0's part only after rank 0 has it back.
          reduce: async (parts, output) => {
            if (handle.rank === 1 && !isSpoilt) {
              isSpoilt = true;
              joined[0]!.group.abort('on purpose');
              inputs[0]!.fill(255);
            }
            const sums = floatsOf(output).fill(0);
            for (const part of parts.map(floatsOf)) {
              for (const [i, value] of part.entries()) {
                sums[i]! += value;
              }
            }
          },
        }),
      ),
    );
    const inputs = joined.map(({ group }) => {
      const bytes = group.allocate(8 * LENGTH);
      floatsOf(bytes).fill(1);
      return bytes;
    });
    const ended = await Promise.allSettled(
      joined.map(({ group }, rank) =>
        group.reduceScatter(inputs[rank]!, new Uint8Array(4 * LENGTH), SUM),
      ),
    );
    for (const end of ended) {
      const reason = { code: 'ABORTED', originRank: 0 };
      expect(end).toMatchObject({ status: 'rejected', reason });
    }
  });

  it('is not handed over as a message', async () => {
    const [near, far] = createShmJob(2);
    let isWhole = false;
    const heard = { received: 0, accesses: 0 };
    const payload = new Uint8Array(new SharedArrayBuffer(3 * 2 ** 20)).fill(1);
    const target = new Uint8Array(payload.length);
    const receiver = transportOf(near!, {
      onMessage: () => ({
        posted: undefined,
        get room() {
          heard.accesses++;
          if (heard.accesses === 3) {
            void sender.close('drop');
            payload.fill(255);
          }
          return target.subarray(heard.received);
        },
        filled: (byteLength: number) => {
          heard.received += byteLength;
        },
        write: () => {},
      }),
    });
    const sender = transportOf(far!, {});
    await Promise.all([receiver.join(), sender.join()]);
    sender.register(payload.buffer as SharedArrayBuffer);
    void sender.send(0, headerOf(payload.length), payload)?.then(() => {
      isWhole = true;
    });
    while (heard.accesses < 3) {
      await new Promise((resolve) => setImmediate(resolve));
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(heard).toEqual({ received: 2 * 2 ** 20, accesses: 3 });
    expect(target.subarray(0, heard.received).every((byte) => byte === 1)).toBe(true);
    expect(isWhole).toBe(true); // The sender has its memory back.
    receiver.terminate();
  });
});

function floatsOf({ buffer, byteOffset, byteLength }: Uint8Array): Float32Array {
  return new Float32Array(buffer, byteOffset, byteLength / 4);
}

function transportOf(
  handle: Parameters<typeof connectShmEndpoint>[0],
  listener: Partial<TransportListener>,
): ShmTransport {
  const nobody: TransportListener = {
    onMessage: () => ({ posted: undefined, write: () => {} }),
    onControl: () => {},
    onPeerLost: () => {},
    onRelayLost: () => {},
    onPeerLeft: () => {},
  };
  return new ShmTransport({
    handle,
    heap: undefined,
    listener: { ...nobody, ...listener },
    turns: new Turns(systemClock),
    watchMs: 0,
  });
}

function headerOf(byteLength: number): MessageHeader {
  const call = {
    operation: 'allGather',
    dtype: 'u8',
    reduceOp: null,
    byteLength,
    root: -1,
    layout: 0,
  } as const;
  return { group: 'world', sequence: 0, phase: 0, call, byteLength };
}
