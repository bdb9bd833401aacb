// Token tables that no rank has whole while it computes: each looks up and scores with the rows
// that it has, and the ranks exchange what that gives, which is far less than the table.
//
// The modules that use a table this way, Embedding and LanguageHead, say so under TOKEN_TABLE. A
// wrapper that shards their parameters gives the table a ShardedTable, with which they compute.

import type { Tensor } from '@shardweave/tensor-core';

/** What computes with a table [words, width] of which each rank has some rows. Collective. */
export interface ShardedTable {
  /** Rows by their ids (any shape), as embedding gives them: [..., width]. */
  lookUp(ids: Tensor): Promise<Tensor>;
  /** The cross-entropy of targets [...] under x [..., width] times the table transposed, f32. */
  losses(x: Tensor, targets: Tensor): Promise<Tensor>;
  /** x [..., width] times the transposed table, [..., words], outside the graph. */
  logits(x: Tensor): Promise<Tensor>;
}

/** The key under which a module has the table that it reads by a ShardedTable, if there is one. */
export const TOKEN_TABLE: unique symbol = Symbol.for('@shardweave/nn/token-table');

/** The key on a tensor, which another copy of the package finds, too. */
const SHARDED = Symbol.for('@shardweave/nn/sharded-table');

interface Carrier {
  [SHARDED]?: ShardedTable | undefined;
}

/** The table that a module reads by a ShardedTable; undefined for any other module. */
export function tokenTableOf(module: object): Tensor | undefined {
  return (module as { readonly [TOKEN_TABLE]?: Tensor })[TOKEN_TABLE];
}

/** Has the modules that use a table compute with `sharded`; with undefined, with its own values. */
export function shardTable(table: Tensor, sharded: ShardedTable | undefined): void {
  (table as Carrier)[SHARDED] = sharded;
}

/**
 * What computes with a table that is sharded; undefined where its values are used themselves, as
 * those of a sharded one are while all of them are shown.
 */
export function shardedTableOf(table: Tensor): ShardedTable | undefined {
  const sharded = (table as Carrier)[SHARDED];
  return sharded !== undefined && table.storage.isFilled ? undefined : sharded;
}
