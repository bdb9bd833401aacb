// What nn's functions of a model's state ask of replicas: every rank has all values, the first one
// writes saves, and all of them hear of one that fails.

import {
  agree,
  agreeOnTexts,
  exchangeTexts,
  type PartOutcome,
  type ProcessGroup,
  type RankFailure,
} from '@shardweave/collectives';
import { type Module, StateDictError } from '@shardweave/nn';
import { ALONE, type Held, type HeldBy, type HeldRanks, plainAtRest } from '@shardweave/nn/flat';
import { DdpRankFailedError } from '../errors.js';
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
  const settle = (operation: string, reason: string) =>
    inTurn(operation, () => agree(group, reason, exchangeCall(operation)));
  return {
    isAlone: worldSize === 1,
    rank,
    worldSize,
    isFirst,
    isWriting: isFirst,
    agree: async (operation, own) => {
      const outcome = await own().then(
        (value) => ({ value }),
        (error: unknown) => ({ error }),
      );
      if ('error' in outcome) {
        await settle(operation, textOf(outcome.error)).catch(() => undefined);
        throw outcome.error;
      }
      const failure = await settle(operation, '');
      if (failure !== undefined) {
        throw failedOn(group, operation, failure);
      }
      return outcome.value;
    },
    agreeOnText: async (operation, make) => {
      const outcome = await Promise.resolve()
        .then(make)
        .then(
          (text) => ({ text }),
          (error: unknown) => ({ failure: textOf(error), error }),
        );
      const own: PartOutcome =
        'text' in outcome ? { text: outcome.text } : { failure: outcome.failure };
      const texts = await inTurn(operation, () =>
        agreeOnTexts(group, own, exchangeCall(operation)),
      );
      if ('error' in outcome) {
        throw outcome.error;
      }
      if ('reason' in texts) {
        throw failedOn(group, operation, texts);
      }
      const others = texts.flatMap((text, other) => (text === texts[0] ? [] : [other]));
      if (others.length > 0) {
        throw new StateDictError(
          `${operation}: expected the same names and values on all ranks, got others on rank ${others.join(', ')} than on rank 0. Nothing is loaded: read one file on every rank, or load into the module inside on one rank and call syncParameters.`,
        );
      }
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
    exchange: (operation, text) =>
      inTurn(operation, () => exchangeTexts(group, text, exchangeCall(operation))),
    isOfAnother: (error) => error instanceof DdpRankFailedError,
  };
}

function failedOn(
  group: ProcessGroup,
  operation: string,
  failure: RankFailure,
): DdpRankFailedError {
  return new DdpRankFailedError(
    `${operation}: rank ${failure.rank}/${group.worldSize} failed: ${failure.reason}. This rank stopped with it.`,
    { operation, ...failure },
  );
}

function textOf(error: unknown): string {
  return error instanceof Error && error.message !== '' ? error.message : String(error);
}
