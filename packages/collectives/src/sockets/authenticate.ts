// Mutual authentication by the job's secret: the handshake over a socket, within a time limit. A
// stranger is found out here, and acceptor.ts turns it away. Each side ends with a socket without a
// handler; its next owner sets one and misses nothing.

import { type Clock, systemClock } from '../clock.js';
import { setLimit } from '../time-limit.js';
import { type Hello, JoinerHandshake, ListenerHandshake } from './handshake.js';
import type { WireSocket } from './wire-socket.js';

/** The close code for a peer that is turned away; the close reason tells why. */
export const REFUSED_CODE = 4401;

/**
 * The milliseconds that a peer may take to authenticate: generous on a loaded machine, short for a
 * flood.
 */
export const PROOF_MS = 5000;

/**
 * The connection ended, or nothing came over it, before the peer had judged; another try may
 * succeed.
 */
export class CutOffError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'CutOffError';
  }
}

export interface AuthenticateJoinerOptions {
  readonly secret: string;
  readonly proofMs: number;
  /** Default: the system's. */
  readonly clock?: Clock;
  /**
   * The reason for turning away a peer although it knows the secret; undefined where it may stay.
   */
  refusalOf(hello: Hello): string | undefined;
}

/**
 * The listener's side: resolves with what the peer tells about itself, or rejects with the reason
 * for which it is refused.
 */
export async function authenticateJoiner(
  socket: WireSocket,
  options: AuthenticateJoinerOptions,
): Promise<Hello> {
  const handshake = new ListenerHandshake(options.secret, socket.session);
  // A stranger's words are marked as such in the log.
  const answer = nextMessage(socket, options, 'it closed: ');
  socket.send(handshake.greeting);
  const judged = handshake.judge(await answer);
  const refusal = 'refusal' in judged ? judged.refusal : options.refusalOf(judged.hello);
  if ('refusal' in judged || refusal !== undefined) {
    throw new Error(refusal);
  }
  socket.send(judged.proof);
  return judged.hello;
}

export interface AuthenticateToListenerOptions {
  readonly secret: string;
  readonly hello: Hello;
  readonly proofMs: number;
  /** Default: the system's. */
  readonly clock?: Clock;
}

/**
 * The joiner's side: rejects with the listener's reason where it is refused, else with CutOffError.
 */
export async function authenticateToListener(
  socket: WireSocket,
  options: AuthenticateToListenerOptions,
): Promise<void> {
  const handshake = new JoinerHandshake(options.secret, options.hello, socket.session);
  socket.send(handshake.answer(await nextMessage(socket, options)));
  handshake.check(await nextMessage(socket, options));
}

/**
 * The next message. Rejects with the peer's reason for closing, after `prefix`, or when `proofMs`
 * have passed.
 */
function nextMessage(
  socket: WireSocket,
  { proofMs, clock = systemClock }: { readonly proofMs: number; readonly clock?: Clock },
  prefix = '',
): Promise<Uint8Array> {
  return new Promise((resolve, reject) => {
    const finish = (settle: () => void) => {
      stopTimer();
      socket.setHandler(undefined);
      settle();
    };
    const onLate = () => finish(() => reject(new CutOffError('no answer')));
    const stopTimer = setLimit(proofMs, onLate, clock);
    socket.setHandler({
      onBinary: (bytes) => finish(() => resolve(bytes.slice())),
      onText: () => finish(() => reject(new Error('expected a binary message'))),
      onClose: (code, reason) =>
        finish(() => {
          const said = reason && `${prefix}${reason}`;
          const message = said || `the connection closed, code ${code}`;
          reject(code === REFUSED_CODE ? new Error(message) : new CutOffError(message));
        }),
    });
  });
}
