// Reads the JSON messages between ranks and the rendezvous. Throws an Error that tells what is
// wrong.

import {
  countOf,
  fieldsOf,
  listOf,
  MAX_JSON_LENGTH,
  parseJson,
  rankOf,
  textOf,
  unknownType,
} from '../wire/message-fields.js';
import type { PeerAddress, RankMessage, RendezvousMessage } from './rendezvous-messages.js';

/** The longest host: DNS names have at most 253 characters. */
const MAX_HOST = 253;

/** The characters of an address in the table beside its host. */
const MAX_ADDRESS = 64;

/** Reads a message of a rank to the rendezvous. */
export function parseRankMessage(text: string): RankMessage {
  const fields = fieldsOf(parseJson(text));
  switch (fields.type) {
    case 'here':
      return { type: 'here', address: parseAddress(fields.address) };
    case 'linked':
      return { type: 'linked' };
    case 'failed':
      return { type: 'failed', reason: textOf(fields.reason, 'reason') };
    default:
      throw unknownType(fields);
  }
}

/** Reads a message of the rendezvous to a rank. */
export function parseRendezvousMessage(text: string, worldSize: number): RendezvousMessage {
  const maxLength = MAX_JSON_LENGTH + worldSize * (MAX_HOST + MAX_ADDRESS);
  const fields = fieldsOf(parseJson(text, maxLength));
  switch (fields.type) {
    case 'table': {
      const addresses = listOf(fields.addresses, 'addresses', worldSize, parseAddress);
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
      throw unknownType(fields);
  }
}

/** Reads where a rank listens. */
export function parseAddress(value: unknown): PeerAddress {
  const { host, port, beats } = fieldsOf(value);
  if (typeof beats !== 'boolean') {
    throw new Error('beats: expected a boolean');
  }
  const name = host === null ? null : textOf(host, 'host', MAX_HOST);
  // The name becomes part of a URL.
  if (name !== null && !/^[\w.:%-]+$/.test(name)) {
    throw new Error('host: expected a name or an address');
  }
  return { host: name, port: countOf(port, 'port', 65_535), beats };
}
