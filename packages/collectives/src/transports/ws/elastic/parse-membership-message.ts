// Reads the JSON messages between members of an elastic job and its coordinator. Throws an Error
// that tells what is wrong.

import type { LastEpoch, Said, Table, TableMember, Told } from '../../../membership/messages.js';
import { MAX_NOTE_BYTES } from '../../../membership/messages.js';
import { parseAddress } from '../join/parse-rendezvous-message.js';
import type { PeerAddress } from '../join/rendezvous-messages.js';
import {
  countOf,
  type Fields,
  fieldsOf,
  listOf,
  MAX_JSON_LENGTH,
  parseJson,
  textOf,
  unknownType,
} from '../wire/message-fields.js';

/** The most members of a job: epochs and ids of more would not fit into a handshake's numbers. */
export const MAX_MEMBERS = 4096;

/** The most characters of a member in a table; JSON may write six for one of its note. */
const MAX_MEMBER = 6 * MAX_NOTE_BYTES + 512;

/** The most bytes of what a coordinator tells of its job. */
export const MAX_ABOUT_BYTES = 32 * 1024;

const MAX_U32 = 0xffffffff;

/** What a member says, or undefined for a sign of life. */
export function parseSaid(text: string): Said<PeerAddress> {
  const fields = fieldsOf(parseJson(text));
  switch (fields.type) {
    case 'here':
      return {
        type: 'here',
        address: parseAddress(fields.address),
        told: epochOf(fields.told),
        last: fields.last === undefined ? undefined : lastOf(fieldsOf(fields.last)),
      };
    case 'edge':
      return {
        type: 'edge',
        epoch: epochOf(fields.epoch),
        hasState: flagOf(fields.hasState, 'hasState'),
        ...edgeOf(fields),
      };
    case 'linked':
      return { type: 'linked', epoch: epochOf(fields.epoch), peers: idsOf(fields.peers, 'peers') };
    case 'lost':
      return {
        type: 'lost',
        epoch: epochOf(fields.epoch),
        members: idsOf(fields.members, 'members'),
      };
    case 'leave':
      return { type: 'leave' };
    default:
      throw unknownType(fields);
  }
}

/** What the coordinator tells; undefined is a sign of life. */
export function parseTold(text: string): Told<PeerAddress> | undefined {
  const fields = fieldsOf(parseJson(text, MAX_JSON_LENGTH + MAX_MEMBERS * MAX_MEMBER));
  switch (fields.type) {
    case 'beat':
      return undefined;
    case 'welcome':
      return {
        type: 'welcome',
        id: idOf(fields.id),
        epoch: epochOf(fields.epoch),
        about:
          fields.about === undefined ? undefined : textOf(fields.about, 'about', MAX_ABOUT_BYTES),
      };
    case 'table':
      return { type: 'table', ...tableOf(fields) };
    case 'formed':
    case 'due':
      return { type: fields.type, epoch: epochOf(fields.epoch) };
    case 'over':
      return { type: 'over', epoch: epochOf(fields.epoch), lost: idsOf(fields.lost, 'lost') };
    case 'fenced':
    case 'ended':
      return { type: fields.type, reason: textOf(fields.reason, 'reason') };
    default:
      throw unknownType(fields);
  }
}

function tableOf(fields: Fields): Table<PeerAddress> {
  const members = listOf(fields.members, 'members', MAX_MEMBERS, memberOf);
  return {
    epoch: epochOf(fields.epoch),
    members,
    before: idsOf(fields.before, 'before'),
    source: countOf(fields.source, 'source', members.length - 1),
  };
}

function memberOf(value: unknown): TableMember<PeerAddress> {
  const fields = fieldsOf(value);
  return { id: idOf(fields.id), address: parseAddress(fields.address), ...edgeOf(fields) };
}

function lastOf(fields: Fields): LastEpoch {
  return {
    id: idOf(fields.id),
    epoch: epochOf(fields.epoch),
    members: idsOf(fields.members, 'members'),
    isRunning: flagOf(fields.isRunning, 'isRunning'),
  };
}

function edgeOf({ step, note }: Fields) {
  return {
    step: countOf(step, 'step', Number.MAX_SAFE_INTEGER),
    note: textOf(note, 'note', MAX_NOTE_BYTES),
  };
}

function epochOf(value: unknown): number {
  return countOf(value, 'epoch', MAX_U32);
}

function idOf(value: unknown): number {
  return countOf(value, 'id', MAX_U32);
}

function idsOf(value: unknown, name: string): number[] {
  return listOf(value, name, MAX_MEMBERS, idOf);
}

function flagOf(value: unknown, name: string): boolean {
  if (typeof value !== 'boolean') {
    throw new Error(`${name}: expected a boolean`);
  }
  return value;
}
