// A file of the Hub that is read by ranges, for what needs its header alone.

import type { ByteSource } from '@shardweave/nn';
import type { HubClient, HubFile } from './hub-client.js';
import { HubContentError } from './hub-errors.js';

export class HubSource implements ByteSource {
  readonly byteLength: number;
  readonly #place: { readonly repo: string; readonly commit: string; readonly path: string };
  readonly #client: HubClient;

  constructor(
    client: HubClient,
    { repo, commit, file }: { readonly repo: string; readonly commit: string; file: HubFile },
  ) {
    this.byteLength = file.byteLength;
    this.#place = { repo, commit, path: file.path };
    this.#client = client;
  }

  /**
   * Throws as HubClient.open does.
   * @throws {HubContentError} where fewer bytes come
   */
  async read(into: Uint8Array, { offset }: { readonly offset: number }): Promise<void> {
    const end = offset + into.byteLength;
    const { from, pieces } = await this.#client.open(this.#place, { from: offset, end });
    let at = from;
    for await (const piece of pieces) {
      const wanted = piece.subarray(Math.max(0, offset - at), Math.max(0, end - at));
      into.set(wanted, Math.max(0, at - offset));
      at += piece.byteLength;
      if (at >= end) {
        return;
      }
    }
    if (at < end) {
      throw new HubContentError(
        `${this.#place.path}: expected bytes up to ${end}, and the connection ended at ${at}. Run the command again.`,
      );
    }
  }
}
