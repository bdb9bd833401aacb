import type { OpenedOwnModel } from '../../own-model/open-own-model.js';
import type { RunConfig } from '../../run-config.js';
import { isEncoder } from '../../task/text-config.js';
import { ClassObjective } from './classes.js';
import { LanguageObjective } from './language.js';
import type { Objective } from './objective.js';
import { OwnObjective } from './own.js';
import { PairObjective, type PairOptions } from './pairs.js';
import { PreferenceObjective, type PreferenceOptions } from './preferences.js';

/** The objective of a run's task; no other place asks which one that is. */
export function openObjective(
  options: Omit<PairOptions, 'config'> & {
    readonly config: PairOptions['config'] &
      PreferenceOptions['config'] &
      Pick<RunConfig, 'head' | 'modelConfig'>;
    /** The model that people have written; undefined for one of ours. */
    readonly own: OpenedOwnModel | undefined;
  },
): Objective {
  const { own, config } = options;
  const { head, modelConfig } = config;
  switch (head.kind) {
    case 'lm':
      return new LanguageObjective(options);
    case 'module':
      return new OwnObjective(options, own!);
    case 'dpo':
    case 'orpo':
      return new PreferenceObjective(options, head.kind);
    case 'embed':
      return new PairObjective(options);
    default:
      return new ClassObjective(
        options,
        head,
        isEncoder(modelConfig) && modelConfig.type_vocab_size > 1,
      );
  }
}
