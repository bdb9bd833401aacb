// The messages between members and their coordinator: what is read is what was written, and every
// field is checked.

import { describe, expect, it } from 'vitest';
import type { Said, Told } from '../src/membership/messages.js';
import { parseSaid, parseTold } from '../src/transports/ws/elastic/parse-membership-message.js';
import type { PeerAddress } from '../src/transports/ws/join/rendezvous-messages.js';

const address = { host: '10.0.0.1', port: 9, beats: true };
const last = { id: 3, epoch: 4, members: [1, 3], isRunning: true };
const edge = { type: 'edge', epoch: 2, hasState: true, step: 7, note: '\u0000\u20ac' } as const;
const member = { id: 3, address, step: 7, note: 'n' };
const table = { type: 'table', epoch: 2, members: [member], before: [1], source: 0 } as const;

const SAID: readonly Said<PeerAddress>[] = [
  { type: 'here', address, told: 0 },
  { type: 'here', address: { ...address, host: null }, told: 5, last },
  edge,
  { type: 'linked', epoch: 2, peers: [1, 4] },
  { type: 'lost', epoch: 2, members: [] },
  { type: 'leave' },
];

const TOLD: readonly Told<PeerAddress>[] = [
  { type: 'welcome', id: 4, epoch: 2 },
  table,
  { type: 'formed', epoch: 2 },
  { type: 'over', epoch: 2, lost: [1] },
  { type: 'due', epoch: 2 },
  { type: 'fenced', reason: 'r' },
  { type: 'ended', reason: 'r' },
];

describe('messages', () => {
  it.each(SAID.map((said) => [said.type, said]))('a member says %s', (_, said) => {
    expect(parseSaid(JSON.stringify(said))).toEqual(said);
  });

  it.each(TOLD.map((told) => [told.type, told]))('a coordinator tells %s', (_, told) => {
    expect(parseTold(JSON.stringify(told))).toEqual(told);
  });

  it('a sign of life is nothing to hear', () => {
    expect(parseTold('{"type":"beat"}')).toBeUndefined();
  });

  it('notes of all members are read, however long', () => {
    const members = Array.from({ length: 64 }, (_, id) => ({
      ...member,
      id,
      note: '\u0001'.repeat(1024),
    }));
    expect(parseTold(JSON.stringify({ ...table, members }))).toMatchObject({ members });
  });
});

describe('what is refused of a member', () => {
  it.each([
    ['no JSON', '{', /no JSON/],
    ['another type', { type: 'table' }, /unknown message type "table"/],
    ['no address', { type: 'here' }, /expected an object/],
    ['a port', { type: 'here', address: { ...address, port: 65_536 } }, /port: expected/],
    ['an id', { type: 'here', address, told: 0, last: { ...last, id: -1 } }, /id: expected/],
    [
      'a flag',
      { type: 'here', address, told: 0, last: { ...last, isRunning: 1 } },
      /isRunning: expected/,
    ],
    ['an epoch', { ...edge, epoch: 2 ** 32 }, /epoch: expected/],
    ['a state', { ...edge, hasState: null }, /hasState: expected/],
    ['a step', { ...edge, step: 0.5 }, /step: expected/],
    ['a note', { ...edge, note: 'x'.repeat(1025) }, /note: expected/],
    ['peers', { type: 'linked', epoch: 2, peers: [1.5] }, /id: expected/],
    ['lost ones', { type: 'lost', epoch: 2, members: 1 }, /members: expected a list/],
    ['many', { type: 'lost', epoch: 2, members: Array(4097).fill(0) }, /at most 4096/],
  ])('%s', (_, message, reason) => {
    const text = typeof message === 'string' ? message : JSON.stringify(message);
    expect(() => parseSaid(text)).toThrow(reason);
  });
});

describe('what is refused of a coordinator', () => {
  it.each([
    ['another type', { type: 'here' }, /unknown message type "here"/],
    ['an id', { type: 'welcome', id: 'x', epoch: 1 }, /id: expected/],
    ['a source that is no rank', { ...table, source: 1 }, /source: expected/],
    ['a table of nobody', { ...table, members: [] }, /source: expected/],
    ['a reason', { type: 'ended' }, /reason: expected/],
    ['lost ones', { type: 'over', epoch: 1 }, /lost: expected a list/],
  ])('%s', (_, message, reason) => {
    expect(() => parseTold(JSON.stringify(message))).toThrow(reason);
  });
});
