// How two processes authenticate: each proves to the other that it knows the job's secret, before
// anything else is parsed. It maps bytes to bytes, without sockets, timers or Node (authenticate.ts
// has those).
//   listener -> joiner   magic (4), nonce (32)
//   joiner -> listener   magic (4), role, rank, target, world size, attempt (u32 each, little
//                        endian), run (16), nonce (32), HMAC-SHA256 over 'joiner', the listener's
//                        nonce, all these and the TLS session (32)
//   listener -> joiner   HMAC-SHA256 over 'listener' and the same (32)
//
// The run is the beginning of the SHA-256 of the run's id: two jobs may share a secret, as pods of
// a cluster do. The secret is never sent, and both nonces are fresh, so nothing can be replayed.
// The session is what only the ends of a TLS session know (see WireSocket), so nothing can be
// relayed from one session to another.

import { hmac } from '@noble/hashes/hmac.js';
import { sha256 } from '@noble/hashes/sha2.js';

/** The purposes of a connection. The index of a role in this list is its number on the wire. */
const ROLES = [
  'rendezvous',
  'link',
  'heartbeat',
  'relay',
  'heartbeat subscriber',
  'heartbeat relay',
] as const;

/**
 * - rendezvous: a rank meets the others.
 * - link: data goes between two ranks.
 * - heartbeat: a rank's worker sends signs of life to a rank that listens.
 * - relay: a link that the rendezvous' process joins from two connections, because neither of its
 *   ends can listen.
 * - heartbeat subscriber: a rank that can't listen opens it to another rank's worker, which sends
 *   its signs of life over it.
 * - heartbeat relay: signs of life in both directions, joined like a relay.
 */
export type Role = (typeof ROLES)[number];

/** What a joiner tells about itself; the proof covers all of it. */
export interface Hello {
  readonly role: Role;
  readonly rank: number;
  /** The rank that it wants to reach; RENDEZVOUS_TARGET for the rendezvous. */
  readonly target: number;
  readonly worldSize: number;
  /** The number of earlier starts of the job: ranks of different attempts refuse each other. */
  readonly attempt: number;
  /** The digest of the run's id, as `runDigest` makes it. */
  readonly run: Uint8Array;
}

/** Stands for the rendezvous, which is not a rank, and which any process may host. */
export const RENDEZVOUS_TARGET = 0xffffffff;

/** The name of the protocol with its version. */
const MAGIC = new TextEncoder().encode('SWC5');
const NONCE_BYTES = 32;
const MAC_BYTES = 32;
const NUM_FIELDS = 5;
const FIELDS_END = MAGIC.length + 4 * NUM_FIELDS;
const RUN_BYTES = 16;
const RUN_END = FIELDS_END + RUN_BYTES;
const SAID_BYTES = RUN_END + NONCE_BYTES;

export const GREETING_BYTES = MAGIC.length + NONCE_BYTES;
export const HELLO_BYTES = SAID_BYTES + MAC_BYTES;

const NO_SESSION: Uint8Array = new Uint8Array(0);

const FOREIGN = 'not a rank of this program and version';

/** The handshake of the side that was called. */
export class ListenerHandshake {
  /** The first message, to be sent by the caller of this class. */
  readonly greeting: Uint8Array;
  readonly #secret: string;
  readonly #session: Uint8Array;

  constructor(secret: string, session = NO_SESSION) {
    this.#secret = secret;
    this.#session = session;
    this.greeting = concatBytes(MAGIC, randomNonce());
  }

  /**
   * What a joiner that knows the secret tells about itself, with the proof for it; else the reason
   * why it is refused.
   */
  judge(
    message: Uint8Array,
  ): { readonly hello: Hello; readonly proof: Uint8Array } | { readonly refusal: string } {
    if (message.length !== HELLO_BYTES || !hasMagic(message)) {
      return { refusal: FOREIGN };
    }
    const nonce = this.greeting.subarray(MAGIC.length);
    const said = message.subarray(0, SAID_BYTES);
    const proofOf = (side: Side) => mac(this.#secret, side, nonce, said, this.#session);
    if (!isEqual(proofOf('joiner'), message.subarray(SAID_BYTES))) {
      return { refusal: 'wrong secret' };
    }
    const view = new DataView(said.buffer, said.byteOffset, said.byteLength);
    const field = (i: number) => view.getUint32(MAGIC.length + 4 * i, true);
    const role = ROLES[field(0)];
    if (role === undefined) {
      return { refusal: FOREIGN };
    }
    const hello = {
      role,
      rank: field(1),
      target: field(2),
      worldSize: field(3),
      attempt: field(4),
      run: said.slice(FIELDS_END, RUN_END),
    };
    return { hello, proof: proofOf('listener') };
  }
}

/** The handshake of the side that called. */
export class JoinerHandshake {
  readonly #secret: string;
  readonly #hello: Hello;
  readonly #session: Uint8Array;
  #expected: Uint8Array | undefined;

  constructor(secret: string, hello: Hello, session = NO_SESSION) {
    this.#secret = secret;
    this.#hello = hello;
    this.#session = session;
  }

  /** The answer to the listener's greeting. Throws where it is not a greeting. */
  answer(greeting: Uint8Array): Uint8Array {
    if (greeting.length !== GREETING_BYTES || !hasMagic(greeting)) {
      throw new Error(FOREIGN);
    }
    const { role, rank, target, worldSize, attempt, run } = this.#hello;
    const nonce = greeting.subarray(MAGIC.length);
    const fields = new DataView(new ArrayBuffer(4 * NUM_FIELDS));
    [ROLES.indexOf(role), rank, target, worldSize, attempt].forEach((value, i) => {
      fields.setUint32(4 * i, value, true);
    });
    const said = concatBytes(MAGIC, new Uint8Array(fields.buffer), run, randomNonce());
    const proofOf = (side: Side) => mac(this.#secret, side, nonce, said, this.#session);
    this.#expected = proofOf('listener');
    return concatBytes(said, proofOf('joiner'));
  }

  /** Throws unless the listener has proved that it knows the secret. */
  check(proof: Uint8Array): void {
    if (this.#expected === undefined || !isEqual(this.#expected, proof)) {
      throw new Error('the listener does not know the secret');
    }
  }
}

/** The 16 bytes that stand for a run's id in a handshake. */
export function runDigest(runId: string): Uint8Array {
  return sha256(new TextEncoder().encode(runId)).slice(0, RUN_BYTES);
}

export function isSameRun(a: Uint8Array, b: Uint8Array): boolean {
  return isEqual(a, b);
}

type Side = 'joiner' | 'listener';

/** The HMAC over parts of fixed lengths: a session has 32 bytes, or none. */
function mac(secret: string, side: Side, ...parts: readonly Uint8Array[]): Uint8Array {
  const text = new TextEncoder();
  const message = concatBytes(text.encode(`shardweave ${side}\n`), ...parts);
  return hmac(sha256, text.encode(secret), message);
}

function randomNonce(): Uint8Array {
  return globalThis.crypto.getRandomValues(new Uint8Array(NONCE_BYTES));
}

function hasMagic(bytes: Uint8Array): boolean {
  return MAGIC.every((byte, i) => bytes[i] === byte);
}

/** Compares in a time that does not depend on what differs. */
function isEqual(a: Uint8Array, b: Uint8Array): boolean {
  let difference = a.length ^ b.length;
  for (let i = 0; i < a.length; i++) {
    difference |= a[i]! ^ (b[i] ?? 0);
  }
  return difference === 0;
}

function concatBytes(...parts: readonly Uint8Array[]): Uint8Array {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let offset = 0;
  for (const part of parts) {
    all.set(part, offset);
    offset += part.length;
  }
  return all;
}
