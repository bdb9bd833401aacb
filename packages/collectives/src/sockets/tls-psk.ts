// TLS 1.3 between ranks without certificates: both ends know a key that is derived from the job's
// secret (RFC 8446, with an ephemeral exchange, so recorded traffic stays unreadable when the
// secret becomes known). A peer that does not know the key gets no further than its first message,
// and nobody on the way can read or change a byte. Node only; pages support only certificates.

import { createHmac } from 'node:crypto';
import type { Socket } from 'node:net';
import type { ConnectionOptions, TLSSocket, TlsOptions } from 'node:tls';

/** The only suite whose hash, SHA-256, a key without a name of its own may be used with. */
const PSK_SUITE = { ciphers: 'TLS_AES_128_GCM_SHA256', minVersion: 'TLSv1.3' } as const;

/** The exporter of RFC 9266. */
const SESSION_LABEL = 'EXPORTER-Channel-Binding';
const SESSION_BYTES = 32;

const IDENTITY = 'shardweave';

/**
 * How listeners are trusted, by the secret or by a certificate, in a form that can be posted to a
 * worker.
 */
export interface ClientTls {
  /** The key that `tlsKeyOf` makes of the secret. */
  readonly pskKey?: Uint8Array | undefined;
  /** The authorities that signed the listeners' certificates. */
  readonly ca?: string | Buffer | readonly (string | Buffer)[] | undefined;
  /** The name in these certificates. */
  readonly servername?: string | undefined;
}

/**
 * The key of 32 bytes that both ends derive from the job's secret. The text under the HMAC keeps it
 * apart from the handshake's proofs, which are made with the same secret.
 */
export function tlsKeyOf(secret: string): Buffer {
  return createHmac('sha256', secret).update('shardweave tls\n').digest();
}

/** Options of `tls.createServer`. */
export function pskServerOptions(key: Uint8Array): TlsOptions {
  return { ...PSK_SUITE, pskCallback: (_, identity) => (identity === IDENTITY ? key : null) };
}

/**
 * The bytes that both ends of a TLS session know, and nobody else: a proof over them is of no use
 * in another session. Undefined for a connection without TLS, and for one that has ended.
 */
export function sessionOf(connection: Socket): Uint8Array | undefined {
  if (!('encrypted' in connection) || connection.destroyed) {
    return undefined;
  }
  const tls = connection as TLSSocket;
  return tls.exportKeyingMaterial(SESSION_BYTES, SESSION_LABEL, Buffer.alloc(0));
}

/**
 * Options of `tls.connect`. With a key there is no certificate to check, because the key itself
 * proves who the server is.
 */
export function connectOptionsOf({ pskKey, ca, servername }: ClientTls): ConnectionOptions {
  if (pskKey !== undefined) {
    const answer = { psk: pskKey, identity: IDENTITY };
    return { ...PSK_SUITE, pskCallback: () => answer, checkServerIdentity: () => undefined };
  }
  return {
    minVersion: 'TLSv1.3',
    ...(ca === undefined ? {} : { ca: Array.isArray(ca) ? [...ca] : (ca as string | Buffer) }),
    ...(servername === undefined ? {} : { servername }),
  };
}
