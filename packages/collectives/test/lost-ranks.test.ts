// What errors tell of ranks that are dead or cut off, and of an epoch that is over.

import type { CollectiveError, Failure } from '@shardweave/collectives';
import { describe, expect, it } from 'vitest';
import { EpochOverError } from '../src/errors.js';
import { EpochEndpoint } from '../src/membership/epoch-endpoint.js';
import { createMemoryEndpoints } from '../src/transports/memory.js';
import { parseLinkMessage } from '../src/transports/ws/link/parse-link-message.js';

/** The errors of calls that were pending on three ranks when rank 0 failed for this reason. */
async function errorsOf(failure: Failure): Promise<readonly CollectiveError[]> {
  const ranks = createMemoryEndpoints(3);
  // Rank 1 does not call, so the others wait.
  const calls = [ranks[0]!, ranks[2]!].map(({ group }) => group.barrier());
  const settled = Promise.allSettled(calls);
  ranks[0]!.endpoint.fail(failure);
  const late = await Promise.allSettled([ranks[1]!.group.barrier()]);
  return [...(await settled), ...late].map((outcome) => {
    expect(outcome).toMatchObject({ status: 'rejected' });
    return (outcome as PromiseRejectedResult).reason as CollectiveError;
  });
}

describe('the errors of all ranks', () => {
  it.each([
    ['the rank that died', { kind: 'peer-lost', origin: 1, reason: 'r' }, [1]],
    ['all that died', { kind: 'peer-lost', origin: 1, reason: 'r', lost: [1, 2] }, [1, 2]],
    ['nobody where a rank aborted', { kind: 'aborted', origin: 0, reason: 'r' }, []],
  ] as const)('name %s as lost', async (_, failure, expected) => {
    for (const error of await errorsOf(failure)) {
      expect(error.lost).toEqual(expected);
    }
  });

  it.each([0, 1, 2])('say that the epoch is over, also where it is for rank %i', async (origin) => {
    const failure = { kind: 'epoch-over', origin, reason: 'rank 2 is silent', lost: [2] } as const;
    for (const error of await errorsOf(failure)) {
      expect(error).toBeInstanceOf(EpochOverError);
      expect(error).toMatchObject({ code: 'EPOCH', originRank: origin, lost: [2] });
      expect(error.message).toContain('this epoch is over (rank 2 is silent');
      expect(error.message).toContain('reform() leads to the next one');
    }
  });
});

describe('an epoch of an elastic job', () => {
  function epochRank() {
    const lost: unknown[] = [];
    const endpoint = new EpochEndpoint(0, 3, {}, { onLost: (...told) => lost.push(told) });
    const none = () => {};
    const close = async () => {};
    endpoint.attach({ send: () => undefined, sendControl: none, close, terminate: none });
    return { endpoint, lost };
  }

  it.each([
    ['is over for a rank that hears that it is lost itself', 0, [0]],
    ['is over when a peer tells of another one', 2, [2]],
  ] as const)('%s', (_, origin, expected) => {
    const { endpoint, lost } = epochRank();
    const failure = { kind: 'peer-lost', origin, reason: 'silent' } as const;
    endpoint.onControl(1, { type: 'failure', failure });
    expect(endpoint.failure).toMatchObject({ kind: 'epoch-over', origin, lost: expected });
    expect(lost).toEqual([]); // it has not seen that itself
  });

  it.each([
    ['a peer that is lost', undefined, [2]],
    ['all that are lost', [1, 2], [1, 2]],
    ['nobody where a peer only gave up', [], []],
  ] as const)('tells its member of %s', (_, ranks, expected) => {
    const { endpoint, lost } = epochRank();
    endpoint.onPeerLost(2, 'silent', ranks);
    expect(endpoint.failure).toMatchObject({ kind: 'epoch-over', origin: 2, lost: expected });
    expect(lost).toEqual([[expected, 'silent']]);
  });
});

it('an epoch whose relay is lost is over, and nobody is lost by that', () => {
  const lost: unknown[] = [];
  const endpoint = new EpochEndpoint(1, 3, {}, { onLost: (...told) => lost.push(told) });
  const close = async () => {};
  endpoint.attach({ send: () => undefined, sendControl: () => {}, close, terminate: () => {} });
  endpoint.onRelayLost('silent');
  const reason = 'the relay is lost: silent';
  expect(endpoint.failure).toMatchObject({ kind: 'epoch-over', origin: 1, lost: [], reason });
  expect(lost).toEqual([[[], 'silent']]);
});

describe('a failure on a link', () => {
  const failure = { kind: 'epoch-over', origin: 1, reason: 'r' } as const;
  const parse = (fields: object) =>
    parseLinkMessage(JSON.stringify({ type: 'failure', failure: fields }), 3);

  it('keeps who is lost', () => {
    expect(parse({ ...failure, lost: [0, 2] })).toEqual({
      type: 'failure',
      failure: { ...failure, lost: [0, 2] },
    });
    expect(parse(failure)).toEqual({ type: 'failure', failure });
  });

  it.each([[[3]], [[-1]], ['0'], [[0, 1, 2, 0]]])('is refused with %j as lost', (lost) => {
    expect(() => parse({ ...failure, lost })).toThrow(/expected/);
  });
});
