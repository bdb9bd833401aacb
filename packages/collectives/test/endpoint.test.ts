// The endpoint against a transport in slow motion: chunks that come late, wrong or twice.

import {
  createWorldGroup,
  Endpoint,
  type MessageHeader,
  type Transport,
} from '@shardweave/collectives';
import { describe, expect, it } from 'vitest';

/** Rank 0 of two; what rank 1 sends is up to the test. */
function lonelyRank() {
  const endpoint = new Endpoint({ rank: 0, worldSize: 2 });
  const transport: Transport = {
    send: async () => {},
    sendControl: () => {},
    close: async () => {},
    terminate: () => {},
  };
  endpoint.attach(transport);
  return { endpoint, group: createWorldGroup(endpoint, { timeoutMs: 1000 }) };
}

function allGatherHeader(byteLength: number): MessageHeader {
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

describe('Endpoint', () => {
  it('joins bytes that came before the call with those that come after', async () => {
    const { endpoint, group } = lonelyRank();
    const sink = endpoint.onMessage(1, allGatherHeader(4));
    sink.write(Uint8Array.of(1, 2));
    const output = new Uint8Array(8);
    const gathered = group.allGather(Uint8Array.of(9, 9, 9, 9), output);
    sink.write(Uint8Array.of(3, 4));
    await gathered;
    expect([...output]).toEqual([9, 9, 9, 9, 1, 2, 3, 4]);
  });

  it('writes nothing to the caller after a failure', async () => {
    const { endpoint, group } = lonelyRank();
    const output = new Uint8Array(8);
    const gathered = group.allGather(new Uint8Array(4), output);
    const sink = endpoint.onMessage(1, allGatherHeader(4));
    sink.write(Uint8Array.of(1, 2));
    group.abort('enough');
    await expect(gathered).rejects.toThrow(/aborted by rank 0: enough/);
    sink.write(Uint8Array.of(3, 4));
    expect([...output]).toEqual([0, 0, 0, 0, 1, 2, 0, 0]);
  });

  it('takes a message that comes twice, or with another length, as a broken peer', async () => {
    for (const [first, second] of [
      [allGatherHeader(4), allGatherHeader(4)],
      [{ ...allGatherHeader(4), byteLength: 3 }, undefined],
    ]) {
      const { endpoint, group } = lonelyRank();
      const gathered = group.allGather(new Uint8Array(4), new Uint8Array(8));
      endpoint.onMessage(1, first!);
      if (second !== undefined) {
        endpoint.onMessage(1, second);
      }
      await expect(gathered).rejects.toMatchObject({ code: 'PEER_LOST', originRank: 1 });
    }
  });

  it('holds nothing of a finished call but its description', async () => {
    const { endpoint, group } = lonelyRank();
    for (let sequence = 0; sequence < 200; sequence++) {
      const gathered = group.allGather(new Uint8Array(4), new Uint8Array(8));
      endpoint.onMessage(1, { ...allGatherHeader(4), sequence }).write(new Uint8Array(4));
      await gathered;
    }
    expect(group.stats()).toMatchObject({ allGathers: 200, bytesSent: 800, bytesReceived: 800 });
    expect(endpoint.failure).toBeUndefined();
    await group.close();
    expect(endpoint.failure).toMatchObject({ kind: 'closed' });
  });
});
