// Reads the JSON messages of peers. They know the secret, but may be broken: every field is checked
// for type and range before anybody uses it. Throws Error with what is wrong.

import type { Failure, PeerCall } from '../../failure.js';
import type { PeerAddress, RankMessage, RendezvousMessage } from './join/rendezvous-messages.js';
import type { LinkMessage } from './link/ws-link.js';

/** Longer texts are cut, not refused: they are for people. */
const MAX_TEXT = 4096;
/** As in frame.ts. */
const MAX_GROUP_BYTES = 255;
/** DNS names have at most 253 characters. */
const MAX_HOST = 253;

type Fields = Readonly<Record<string, unknown>>;

/** What a link carries beside payload. */
export function parseLinkMessage(text: string, worldSize: number): LinkMessage {
  const fields = fieldsOf(parseJson(text));
  switch (fields.type) {
    case 'alive':
      return { type: 'alive' };
    case 'heartbeat port':
      return { type: 'heartbeat port', port: countOf(fields.port, 'port', 65_535) };
    case 'failure':
      return { type: 'failure', failure: failureOf(fieldsOf(fields.failure), worldSize) };
    case 'mismatch':
      return {
        type: 'mismatch',
        group: textOf(fields.group, 'group', MAX_GROUP_BYTES),
        sequence: countOf(fields.sequence, 'sequence', 0xffffffff),
        members: listOf(fields.members, 'members', worldSize, (x) => rankOf(x, worldSize)),
        calls: callsOf(fields.calls, worldSize),
      };
    default:
      throw new Error(`unknown message type ${JSON.stringify(fields.type)?.slice(0, 40)}`);
  }
}

/** What a rank says to the rendezvous. */
export function parseRankMessage(text: string): RankMessage {
  const fields = fieldsOf(parseJson(text));
  switch (fields.type) {
    case 'here':
      return { type: 'here', address: addressOf(fields.address) };
    case 'linked':
      return { type: 'linked' };
    case 'failed':
      return { type: 'failed', reason: textOf(fields.reason, 'reason') };
    default:
      throw new Error(`unknown message type ${JSON.stringify(fields.type)?.slice(0, 40)}`);
  }
}

/** What the rendezvous says to a rank. */
export function parseRendezvousMessage(text: string, worldSize: number): RendezvousMessage {
  const fields = fieldsOf(parseJson(text));
  switch (fields.type) {
    case 'table': {
      const addresses = listOf(fields.addresses, 'addresses', worldSize, addressOf);
      if (addresses.length !== worldSize) {
        throw new Error(`expected ${worldSize} addresses, got ${addresses.length}`);
      }
      return { type: 'table', addresses };
    }
    case 'formed':
      return { type: 'formed' };
    case 'failed':
      return {
        type: 'failed',
        origin: rankOf(fields.origin, worldSize),
        reason: textOf(fields.reason, 'reason'),
      };
    default:
      throw new Error(`unknown message type ${JSON.stringify(fields.type)?.slice(0, 40)}`);
  }
}

function failureOf(fields: Fields, worldSize: number): Failure {
  const base = {
    origin: rankOf(fields.origin, worldSize),
    reason: textOf(fields.reason, 'reason'),
  };
  switch (fields.kind) {
    case 'peer-lost':
    case 'relay-lost':
    case 'aborted':
      return { ...base, kind: fields.kind };
    case 'timeout': {
      const waitingFor = listOf(fields.waitingFor, 'waitingFor', worldSize, (x) =>
        rankOf(x, worldSize),
      );
      return { ...base, kind: 'timeout', waitingFor };
    }
    case 'mismatch':
      return { ...base, kind: 'mismatch', calls: callsOf(fields.calls, worldSize) };
    default:
      throw new Error('unknown kind of failure');
  }
}

function callsOf(value: unknown, worldSize: number): PeerCall[] {
  return listOf(value, 'calls', worldSize, (item) => {
    const { rank, call } = fieldsOf(item);
    return { rank: rankOf(rank, worldSize), call: textOf(call, 'call') };
  });
}

function addressOf(value: unknown): PeerAddress {
  const { host, port, beats } = fieldsOf(value);
  if (typeof beats !== 'boolean') {
    throw new Error('beats: expected a boolean');
  }
  const name = host === null ? null : textOf(host, 'host', MAX_HOST);
  // It becomes part of a URL.
  if (name !== null && !/^[\w.:%-]+$/.test(name)) {
    throw new Error('host: expected a name or an address');
  }
  return { host: name, port: countOf(port, 'port', 65_535), beats };
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error('text that is no JSON');
  }
}

function fieldsOf(value: unknown): Fields {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new Error('expected an object');
  }
  return value as Fields;
}

function textOf(value: unknown, name: string, maxLength?: number): string {
  if (typeof value !== 'string' || (maxLength !== undefined && value.length > maxLength)) {
    throw new Error(`${name}: expected a text of at most ${maxLength ?? MAX_TEXT} characters`);
  }
  return maxLength === undefined ? printable(value.slice(0, MAX_TEXT)) : value;
}

/** What people read may end on a terminal, which obeys control characters. */
function printable(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (found) => (found === '\n' ? found : '?'));
}

function countOf(value: unknown, name: string, max: number): number {
  if (typeof value !== 'number' || !Number.isInteger(value) || value < 0 || value > max) {
    throw new Error(`${name}: expected an integer from 0 to ${max}`);
  }
  return value;
}

function rankOf(value: unknown, worldSize: number): number {
  return countOf(value, 'rank', worldSize - 1);
}

function listOf<T>(
  value: unknown,
  name: string,
  maxLength: number,
  read: (item: unknown) => T,
): T[] {
  if (!Array.isArray(value) || value.length > maxLength) {
    throw new Error(`${name}: expected a list of at most ${maxLength}`);
  }
  return value.map(read);
}
