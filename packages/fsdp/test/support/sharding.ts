// Wraps modules over ranks' groups, for programs that also run unwrapped.

import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { checkpoint, Gpt2, type Gpt2Block, type Gpt2Config, type Module } from '@shardweave/nn';
import type * as kit from '../../../../tooling/test-kit/index.ts';
import {
  expectTrainedAsOneProcess,
  type Rank,
  TINY,
  training,
  type Weights,
} from '../../../../tooling/test-kit/index.ts';

export type Wrap = kit.Wrap<Partial<FsdpOptions>>;

/** Returns what wraps a rank's modules, each with a name or options of its own. */
export function wrapIn({ group }: Pick<Rank, 'group'>, options: Partial<FsdpOptions> = {}) {
  return <Args extends readonly unknown[], Output>(
    module: Module<Args, Output>,
    own: Partial<FsdpOptions> | string = {},
  ) =>
    new FullyShardedDataParallel<Args, Output>(module, {
      processGroup: group,
      ...options,
      ...(typeof own === 'string' ? { name: own } : own),
    });
}

export interface Scenario extends kit.ModelProgram<Partial<FsdpOptions>> {
  readonly fsdp?: Partial<FsdpOptions>;
}

/** Expects that a sharded training has the losses and weights of one process; returns rank 0's. */
export async function expectEqualTraining(scenario: Scenario, ranks: number): Promise<Weights> {
  const { weights } = await expectTrainedAsOneProcess(training(scenario), {
    ranks,
    wrap: (rank) => wrapIn(rank, scenario.fsdp),
  });
  return weights[0]!;
}

/** Returns a GPT-2 with each block and the root wrapped. */
export function shardedGpt2(
  rank: Rank,
  options: {
    readonly config?: Partial<Gpt2Config>;
    readonly fsdp?: Partial<FsdpOptions>;
    /** Whether each block is checkpointed inside its sharding. The default is false. */
    readonly isCheckpointing?: boolean;
    /** Whether initial values are drawn only when the model is sharded. The default is false. */
    readonly deferInit?: boolean;
  } = {},
): { model: FullyShardedDataParallel; gpt2: Gpt2 } {
  const { deferInit = false } = options;
  const gpt2 = new Gpt2(rank.device, { ...TINY, ...options.config }, { seed: 3, deferInit });
  const wrap = wrapIn(rank, options.fsdp);
  const names = [...gpt2.children().keys()];
  for (const name of names.slice(1, -1)) {
    const bare = gpt2.children().get(name)! as Gpt2Block;
    const block = options.isCheckpointing === true ? checkpoint(bare) : bare;
    gpt2.replaceChild(name, wrap(block, `block ${name}`));
  }
  return { model: wrap(gpt2, 'root'), gpt2 };
}

/** Expects every instance of a model to be idle. */
export function expectIdle(model: FullyShardedDataParallel): void {
  for (const instance of model.instances()) {
    instance.assertState('idle');
  }
}
