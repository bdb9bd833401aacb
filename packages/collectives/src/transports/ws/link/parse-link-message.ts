// Reads the JSON messages of links, which come beside their payload. Throws an Error that tells
// what is wrong.

import type { Failure, PeerCall } from '../../../failure.js';
import {
  countOf,
  type Fields,
  fieldsOf,
  listOf,
  parseJson,
  rankOf,
  textOf,
  unknownType,
} from '../wire/message-fields.js';
import type { LinkMessage } from './ws-link.js';

/** The same limit as in frame.ts. */
const MAX_GROUP_BYTES = 255;

/** Reads a message that a link carries beside payload. */
export function parseLinkMessage(text: string, worldSize: number): LinkMessage {
  const fields = fieldsOf(parseJson(text));
  switch (fields.type) {
    case 'alive':
      return { type: 'alive' };
    case 'heartbeat port':
      return { type: 'heartbeat port', port: countOf(fields.port, 'port', 65_535) };
    case 'failure':
      return { type: 'failure', failure: failureOf(fieldsOf(fields.failure), worldSize) };
    case 'have you called':
      return { type: 'have you called', ...placeOf(fields) };
    case 'has called':
      if (typeof fields.hasCalled !== 'boolean') {
        throw new Error('hasCalled: expected a boolean');
      }
      return {
        type: 'has called',
        ...placeOf(fields),
        hasCalled: fields.hasCalled,
        call: fields.call === undefined ? undefined : textOf(fields.call, 'call'),
      };
    case 'mismatch':
      return {
        type: 'mismatch',
        ...placeOf(fields),
        members: listOf(fields.members, 'members', worldSize, (x) => rankOf(x, worldSize)),
        calls: callsOf(fields.calls, worldSize),
      };
    default:
      throw unknownType(fields);
  }
}

function placeOf(fields: Fields): { readonly group: string; readonly sequence: number } {
  return {
    group: textOf(fields.group, 'group', MAX_GROUP_BYTES),
    sequence: countOf(fields.sequence, 'sequence', 0xffffffff),
  };
}

function failureOf(fields: Fields, worldSize: number): Failure {
  const ranksOf = (value: unknown, name: string) =>
    listOf(value, name, worldSize, (x) => rankOf(x, worldSize));
  const base = {
    origin: rankOf(fields.origin, worldSize),
    reason: textOf(fields.reason, 'reason'),
    ...(fields.lost === undefined ? {} : { lost: ranksOf(fields.lost, 'lost') }),
  };
  switch (fields.kind) {
    case 'peer-lost':
    case 'relay-lost':
    case 'aborted':
    case 'epoch-over':
      return { ...base, kind: fields.kind };
    case 'timeout': {
      return { ...base, kind: 'timeout', waitingFor: ranksOf(fields.waitingFor, 'waitingFor') };
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
