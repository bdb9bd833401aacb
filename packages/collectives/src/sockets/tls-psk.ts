// TLS between ranks without certificates: both ends know a key that is derived from the job's secret
// (RFC 4279, with an ephemeral exchange by RFC 8442, so what was recorded stays closed when the secret
// becomes known). Who does not know it gets no further than the TLS handshake, and nobody on the way
// reads or changes a byte. Node only; pages know certificates alone.
//
// Heartbeat workers are started from text, so the two functions that they get refer to nothing outside.

import { createHmac } from 'node:crypto';

/**
 * The key of 32 bytes that both ends derive from the job's secret. The text under the HMAC keeps it apart from
 * the proofs of the handshake, which the same secret makes.
 */
export function tlsKeyOf(secret: string): Buffer {
  return createHmac('sha256', secret).update('shardweave tls\n').digest();
}

/** Options of `https.createServer`. */
export function pskServerOptions(key: Uint8Array) {
  return {
    // The cipher is one of TLS 1.2: Node has no callback for keys of 1.3.
    ciphers: 'ECDHE-PSK-CHACHA20-POLY1305',
    maxVersion: 'TLSv1.2',
    pskCallback: (_socket: unknown, identity: string) => (identity === 'shardweave' ? key : null),
  } as const;
}

/** Options of `https.request`. The key says who the server is: it has no certificate to check. */
export function pskClientOptions(key: Uint8Array) {
  return {
    ciphers: 'ECDHE-PSK-CHACHA20-POLY1305',
    maxVersion: 'TLSv1.2',
    pskCallback: () => ({ psk: key, identity: 'shardweave' }),
    checkServerIdentity: () => undefined,
  } as const;
}
