// Makes of --model org/name a directory on this machine, before a command begins.

import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import { RUN_FILES } from '../files/run-files.js';
import { HubUnreachableError } from '../hub/hub-errors.js';
import type { HubOptions } from '../hub/hub-model.js';
import { parseHubName } from '../hub/hub-name.js';
import { isPresetName } from '../model/presets.js';
import { Terminal, type TerminalOptions } from '../output/terminal.js';

/** What a command needs of a model of the Hub. */
export type ModelNeed = 'weights' | 'config';

/** The flags that have a say; a command may lack all of them. */
interface ModelFlags {
  readonly model?: string | undefined;
  readonly quiet?: boolean | undefined;
  readonly out?: string | undefined;
  readonly resume?: string | undefined;
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
function keptCommit(repo: string, { out, resume }: ModelFlags): string | undefined {
  // A save is two directories below its run.
  const places = resume === 'auto' ? [out] : resume && [resume, join(resume, '..', '..')];
  const runs = (places || []).flatMap((place) => place ?? []);
  const file = runs.map((run) => join(run, RUN_FILES.config)).find((path) => existsSync(path));
  const kept = parseHubName(String(file && modelIn(file)));
  return kept?.repo === repo ? kept.revision : undefined;
}

/** The model that a run's config names. Where nobody can read it, its save tells what fits. */
function modelIn(file: string): unknown {
  try {
    return (parse(readFileSync(file, 'utf8')) as { readonly model?: unknown } | null)?.model;
  } catch {
    return undefined;
  }
}
