// Makes of --model org/name a directory on this machine, before a command begins.

import { existsSync } from 'node:fs';
import { HubUnreachableError } from '../hub/hub-errors.js';
import type { HubOptions } from '../hub/hub-model.js';
import { parseHubName } from '../hub/hub-name.js';
import { isPresetName } from '../model/presets.js';
import { Terminal, type TerminalOptions } from '../output/terminal.js';
import { keptValue, type ResumeFlags } from './kept-value.js';

/** What a command needs of a model of the Hub. */
export type ModelNeed = 'weights' | 'config';

/** The flags that have a say; a command may lack all of them. */
interface ModelFlags extends ResumeFlags {
  readonly model?: string | undefined;
  readonly quiet?: boolean | undefined;
}

/**
 * The flags with a model's directory in place of its name. A path that exists is taken as it is,
 * and so is a preset. A run that goes on keeps the commit that it began with.
 * @throws what hubModel does
 */
export async function withLocalModel<F extends object>(
  given: F,
  need: ModelNeed,
  { out, err, env }: Pick<TerminalOptions, 'out' | 'err' | 'env'>,
): Promise<F> {
  const flags = given as ModelFlags;
  const { model = '', quiet = false } = flags;
  const name = parseHubName(model);
  if (name === undefined || isPresetName(model) || existsSync(model)) {
    return given;
  }
  const terminal = new Terminal({ out, err, env, steps: 0, isQuiet: quiet });
  const options: HubOptions = {
    env,
    needsWeights: need === 'weights',
    onBytes: terminal.downloading.bind(terminal),
    onNote: (text) => terminal.warn(text),
    checkHeaders: async (directory, files) => {
      const { checkHeaders } = await import('../plan/check-headers.js');
      await checkHeaders(directory, files);
    },
  };
  try {
    // The library of the Hub is large, and most commands need none of it.
    const { hubModel } = await import('../hub/hub-model.js');
    const kept = name.revision === undefined ? keptCommit(name.repo, flags) : undefined;
    const path = await hubModel({ ...name, revision: kept ?? name.revision }, options);
    return { ...given, model: path };
  } catch (error) {
    if (!(error instanceof HubUnreachableError)) {
      throw error;
    }
    throw new HubUnreachableError(
      `--model: there is no directory ${model} here, and the Hub can't be asked for a model of that name: ${error.message}`,
      { cause: error },
    );
  } finally {
    terminal.close();
  }
}

/** The commit of the model that the resumed run has; undefined where no such run goes on. */
function keptCommit(repo: string, flags: ResumeFlags): string | undefined {
  const kept = parseHubName(String(keptValue('model', flags)));
  return kept?.repo === repo ? kept.revision : undefined;
}
