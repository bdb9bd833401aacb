// What nn's functions of a model's state ask of replicas: every rank has all values, the first one
// writes saves, and all of them hear of one that fails.

import {
  agree,
  type Exchange,
  exchangeTexts,
  PeerFailedError,
  type ProcessGroup,
  requireSameText,
} from '@shardweave/collectives';
import type { Module } from '@shardweave/nn';
import {
  ALONE,
  differingState,
  type Held,
  type HeldBy,
  type HeldRanks,
  plainAtRest,
} from '@shardweave/nn/flat';
import { exchangeCall } from './agreement.js';
import { serial } from './tell-others.js';

/** A wrapper with its group, which sends rank 0's values to all ranks before anything else. */
interface Replica extends Module {
  readonly processGroup: ProcessGroup;
  readonly numericClasses: readonly string[];
  initialize(): Promise<void>;
}

/** How nn asks a wrapper. */
export function heldByReplica({ processGroup }: Replica): HeldBy {
  return { name: 'ddp', group: processGroup, together: heldReplicas };
}

function heldReplicas(wrappers: readonly Module[]): Held {
  const replicas = wrappers as readonly Replica[];
  const named = new Map(
    replicas.flatMap((replica) =>
      replica.namedParameters().map(([name, tensor]) => [tensor, name] as const),
    ),
  );
  const parameters = [...named].map(([tensor, name]) => [name, tensor] as const);
  // Whole tensors are read and set on each rank by itself, so that one may load and send the rest.
  const each = { ...ALONE, isFirst: replicas[0]!.processGroup.rank === 0 };
  return {
    whileAtRest: async (call, body) => {
      if (call.by !== 'tensors') {
        for (const replica of replicas) {
          await replica.initialize(); // tells the numeric classes, and brings rank 0's values
        }
      }
      const ranks = call.by === 'tensors' ? each : ranksOf(replicas);
      return body(plainAtRest(parameters, call, ranks));
    },
  };
}

function ranksOf(replicas: readonly Replica[]): HeldRanks {
  const group = replicas[0]!.processGroup;
  const { rank, worldSize } = group;
  const isFirst = rank === 0;
  const inTurn = async <T>(operation: string, body: () => Promise<T>): Promise<T> => {
    for (const replica of replicas) {
      await replica.initialize();
    }
    return worldSize === 1
      ? body()
      : group.starts.enqueue(Promise.resolve(), body, serial(group, `ddp ${operation}`));
  };
  const exchangeOf =
    (operation: string): Exchange =>
    (text) =>
      inTurn(operation, () => exchangeTexts(group, text, exchangeCall(operation)));
  return {
    isAlone: worldSize === 1,
    rank,
    worldSize,
    isFirst,
    isWriting: isFirst,
    agree: (operation, own) => agree(operation, exchangeOf(operation), own),
    agreeOnText: (operation, make) => {
      const advice =
        'read one file on every rank, or load into the module inside on one rank and call syncParameters';
      const differing = differingState(operation, advice);
      return requireSameText(operation, [exchangeOf(operation)], { make, differing });
    },
    attempt: (_, own) => own(),
    sum: async (operation, values) => {
      const bytes = new Uint8Array(values.buffer);
      const options = { dtype: 'f32', op: 'sum', ...exchangeCall(operation) } as const;
      await inTurn(operation, () => group.allReduce(bytes, bytes, options));
    },
    // Ranks of one class have the same gradients, and so the same bits. Replicas that are scaled by
    // different factors would drift apart.
    firstNorm:
      replicas[0]!.numericClasses.length < 2
        ? undefined
        : async (operation, norm) => {
            const words = Float64Array.of(norm);
            const bytes = new Uint8Array(words.buffer);
            const options = { root: 0, ...exchangeCall(operation) };
            await inTurn(operation, () => group.broadcast(bytes, options));
            return words[0]!;
          },
    exchange: (operation, text) => exchangeOf(operation)(text),
    isOfAnother: (error) => error instanceof PeerFailedError,
  };
}
