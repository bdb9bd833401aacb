// Shows what comes from the Hub while it comes, and says how far it came where it is called off.

import type { SignalError } from '../errors.js';
import { formatBytes } from '../format.js';
import type { RepoOptions } from '../hub/hub-repo.js';
import { Terminal } from '../output/terminal.js';
import type { CommandContext } from './cli-command.js';

/** Where downloads are shown, and what calls them off. */
export type DownloadStreams = Pick<CommandContext, 'out' | 'err' | 'env' | 'listen'>;

/**
 * Runs downloads before a command begins, which looks at signals by itself once they are done.
 * @throws {SignalError} where it is called off
 */
export async function showDownloads<T>(
  { out, err, env, listen }: DownloadStreams,
  isQuiet: boolean | undefined,
  run: (options: RepoOptions & { readonly warn: (text: string) => void }) => Promise<T>,
): Promise<T> {
  using interrupt = listen();
  const { signal } = interrupt;
  const terminal = new Terminal({ out, err, env, steps: 0, isQuiet: isQuiet ?? false });
  let came: string | undefined;
  const onBytes = (name: string, done: number, total: number) => {
    came = `${formatBytes(done)} of ${formatBytes(total)} of ${name} have come`;
    terminal.downloading(name, done, total);
  };
  const warn = (text: string) => void terminal.warn(text);
  try {
    const found = await run({ env, signal, onBytes, onNote: warn, warn });
    signal.throwIfAborted();
    return found;
  } catch (error) {
    throw signal.aborted ? calledOff(signal.reason as SignalError, came) : error;
  } finally {
    terminal.close();
  }
}

function calledOff(wish: SignalError, came = 'nothing has come yet'): SignalError {
  return wish.telling(
    `${wish.by} ended the download: ${came}. What has come is kept: the same command goes on there.`,
  );
}
