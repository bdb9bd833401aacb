// TLS between ranks without certificates: both ends know a key that is derived from the job's
// secret (RFC 4279, with an ephemeral exchange by RFC 8442, so recorded traffic stays unreadable
// when the secret becomes known). A peer that does not know the key gets no further than the TLS
// handshake, and nobody on the way can read or change a byte. Node only; pages support only
// certificates.

import { createHmac } from 'node:crypto';
import type { ConnectionOptions } from 'node:tls';

/** The cipher is one of TLS 1.2, because Node has no callback for keys of 1.3. */
const CIPHER = { ciphers: 'ECDHE-PSK-CHACHA20-POLY1305', maxVersion: 'TLSv1.2' } as const;

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

/** Options of `https.createServer`. */
export function pskServerOptions(key: Uint8Array) {
  return {
    ...CIPHER,
    pskCallback: (_socket: unknown, identity: string) => (identity === IDENTITY ? key : null),
  };
}

/**
 * Options of `tls.connect`. With a key there is no certificate to check, because the key itself
 * proves who the server is.
 */
export function connectOptionsOf({ pskKey, ca, servername }: ClientTls): ConnectionOptions {
  if (pskKey !== undefined) {
    const answer = { psk: pskKey, identity: IDENTITY };
    return { ...CIPHER, pskCallback: () => answer, checkServerIdentity: () => undefined };
  }
  return {
    ...(ca === undefined ? {} : { ca: Array.isArray(ca) ? [...ca] : (ca as string | Buffer) }),
    ...(servername === undefined ? {} : { servername }),
  };
}
