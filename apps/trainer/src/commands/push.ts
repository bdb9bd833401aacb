// The command `push`: uploads what a run has left to a repository of the Hugging Face Hub, with a
// card that tells how it came about.

import { createInterface } from 'node:readline';
import { type SignalError, TrainerError, UsageError } from '../errors.js';
import { flag, needed, type ValuesOf } from '../flags/flag.js';
import { file, onOff, paths } from '../flags/flag-kinds.js';
import { formatBytes } from '../format.js';
import { parseHubName } from '../hub/hub-name.js';
import type { PushFile, PushTarget } from '../hub/hub-push.js';
import { hubSettings } from '../hub/hub-settings.js';
import { Terminal } from '../output/terminal.js';
import type { MadePush } from '../push/make-push.js';
import { type StaleFiles, staleFiles } from '../push/stale-files.js';
import type { CommandContext } from './cli-command.js';
import { defineCommand, QUIET } from './define-command.js';

const FLAGS = {
  from: needed(file, ['--from <RUN>', 'the --out of train, whose model/ or adapter/ is pushed']),
  to: needed(file, ['--to <ORG/NAME>', 'a repository of the Hub, which is made if there is none']),
  private: flag(onOff, false, ['--private', 'make it one that only you and your organization see']),
  yes: flag(onOff, false, ['--yes', 'do not ask before something becomes public']),
  gguf: flag(paths, undefined, [
    '--gguf <FILE>',
    "a GGUF made of the run, with the Modelfile beside it; may be repeated (those in the run's directory go along)",
  ]),
  quiet: QUIET,
};

type PushFlags = ValuesOf<typeof FLAGS>;

/** The command `push`. */
export const push = defineCommand({
  name: 'push',
  description:
    'Uploads the model or adapters of a run to the Hugging Face Hub, in one commit, with a card: base, data by name and hash, settings, losses. Needs HF_TOKEN.',
  flags: FLAGS,
  examples: [
    {
      line: 'push --from runs/tuned --to me/whale-lora --private',
      says: 'adapters, for yourself alone',
    },
    {
      line: 'push --from runs/first --to me/whale --yes --gguf first.gguf',
      says: 'a model for everybody, and a GGUF of it',
    },
  ],
  run,
});

async function run(flags: PushFlags, context: CommandContext): Promise<number> {
  const { out, err, env } = context;
  const repo = repoOf(flags.to);
  const { signal } = context.listen();
  const terminal = new Terminal({ out, err, env, steps: 0, isQuiet: flags.quiet });
  const progress = new PushProgress(terminal, repo);
  try {
    // The library of the Hub is large, and most commands need none of it.
    const { HubPush } = await import('../hub/hub-push.js');
    const hub = new HubPush(repo, hubSettings(env), {
      signal,
      onNote: (text) => void terminal.warn(text),
      onSent: (bytes) => progress.add(bytes),
    });
    const { readPushedRun } = await import('../push/pushed-run.js');
    const pushed = await readPushedRun(flags.from);
    const target = await hub.find();
    requireKind(target, { ...flags, kind: pushed.kind, page: hub.page });
    const isPrivate = target?.isPrivate ?? flags.private;
    const isAsked = !isPrivate && !flags.yes;
    const shown = `${hub.page} ${target === undefined ? 'will be' : 'is'} public`;
    if (isAsked && context.input.isTTY !== true) {
      throw new UsageError(
        `--to: ${shown}, and nobody can be asked here. Give --private for a new one of your own, or --yes.`,
      );
    }
    const { makePush } = await import('../push/make-push.js');
    terminal.doing(`reading ${flags.from}`);
    const made = await makePush(pushed, {
      ...{ repo, ggufs: flags.gguf ?? [], version: context.version, signal },
      licenseOf: (base) => hub.licenseOf(base),
    });
    terminal.close();
    const stale = staleFiles(target, made);
    if (isAsked) {
      await ask(`${shown}: everybody can read what is pushed.${goneText(stale)}`, context);
    }
    if (target === undefined) {
      await hub.create({ isPrivate });
    }
    progress.begin(made.files);
    const { files, title } = made;
    const { removed } = stale;
    const onCommit = () => progress.commitAt(hub.page);
    await hub.commit(files, { title, parent: target?.commit, removed, signal, onCommit });
    terminal.close();
    const place = `${hub.page} (${isPrivate ? 'private' : 'public, everybody can read it'})`;
    for (const line of [...linesOf(made, stale), place]) {
      terminal.note(line);
    }
    return 0;
  } catch (error) {
    throw signal.aborted ? progress.endedBy(signal.reason as SignalError) : error;
  } finally {
    terminal.close();
  }
}

/** What has been pushed, and what has not. */
function linesOf({ files, notes }: MadePush, { removed, left }: StaleFiles): string[] {
  const names = files.map(({ path }) => path).join(', ');
  return [
    `pushed ${names}: ${formatBytes(bytesOf(files))}, one commit`,
    ...(removed.length === 0 ? [] : [`removed there: ${removed.join(', ')}`]),
    ...(left.length === 0
      ? []
      : [`left there: ${left.join(', ')}, which may have been made of other weights`]),
    ...notes,
  ];
}

/** @throws {UsageError} for what is no name of a repository */
function repoOf(to: string): string {
  const name = parseHubName(to);
  if (name === undefined || name.revision !== undefined) {
    throw new UsageError(
      `--to: expected a name on the Hub such as me/whale, got ${to}. A push goes to its main branch.`,
    );
  }
  return name.repo;
}

/** @throws {UsageError} where the repository holds something else, or is public against a wish */
function requireKind(
  target: PushTarget | undefined,
  push: PushFlags & { readonly kind: 'model' | 'adapter'; readonly page: string },
): void {
  if (target === undefined) {
    return;
  }
  const { to, from, kind, page } = push;
  if (push.private && !target.isPrivate) {
    throw new UsageError(
      `--private: ${to} is there already, and public. Make it private on ${page}/settings, give another name, or leave --private out.`,
    );
  }
  const other = kind === 'adapter' ? 'config.json' : 'adapter_config.json';
  // The adapters of a classifier have a config.json, too, which says its labels.
  const isSame = kind === 'adapter' && target.files.includes('adapter_config.json');
  if (!isSame && target.files.includes(other)) {
    const [has, left] =
      kind === 'adapter' ? ['a model', 'adapters'] : ['adapters', 'a whole model'];
    throw new UsageError(
      `--to: ${to} holds ${has} (${other}), and ${from} has left ${left}. Give another name: both in one repository can't be loaded.`,
    );
  }
}

/** What is asked about the files that go. */
function goneText({ removed }: StaleFiles): string {
  const of = 'of an earlier push, which this one has nothing for';
  return removed.length === 0 ? '' : ` It removes there ${removed.join(', ')} ${of}.`;
}

/** @throws {TrainerError} for any answer but yes */
async function ask(what: string, { input, err, listen }: CommandContext): Promise<void> {
  const { signal } = listen();
  signal.throwIfAborted(); // lines of an interface that is closed before they are read never end
  err.write(`${what} Push? [y/N] `);
  const lines = createInterface({ input, signal });
  let isAnswered = false;
  for await (const line of lines) {
    isAnswered = true;
    if (/^y(es)?$/i.test(line.trim())) {
      return;
    }
    break;
  }
  if (!isAnswered) {
    err.write('\n');
  }
  signal.throwIfAborted();
  throw new TrainerError('Nothing was pushed. Give --private for a repository of your own.');
}

/** The bar of the bytes that are sent. Those of other requests are few, and count as files' own. */
class PushProgress {
  readonly #terminal: Terminal;
  readonly #name: string;
  #total = 0;
  #done = 0;
  #committed: string | undefined;

  constructor(terminal: Terminal, name: string) {
    this.#terminal = terminal;
    this.#name = name;
  }

  begin(files: readonly PushFile[]): void {
    this.#total = bytesOf(files);
    this.#done = 0;
    this.#show();
  }

  add(bytes: number): void {
    this.#done += bytes;
    this.#show();
  }

  /** Notes that the commit is on its way to the repository with this page. */
  commitAt(page: string): void {
    this.#committed = page;
  }

  /** What has become of a push that was ended. */
  endedBy(wish: SignalError): SignalError {
    const ended = `${wish.by} ended the push`;
    if (this.#committed !== undefined) {
      return wish.telling(
        `${ended} while its commit was on its way. Look at ${this.#committed} whether it is there.`,
      );
    }
    const sent = `, where ${formatBytes(this.#shown)} of ${formatBytes(this.#total)} had been sent. The same command sends no large file again that has arrived whole`;
    return wish.telling(
      `${ended}: nothing is committed to ${this.#name}${this.#total === 0 ? '' : sent}.`,
    );
  }

  get #shown(): number {
    return Math.max(0, Math.min(this.#done, this.#total - 1));
  }

  #show(): void {
    // A bar that is full goes away, and the commit is still to come.
    if (this.#total > 0) {
      this.#terminal.uploading(this.#name, this.#shown, this.#total);
    }
  }
}

function bytesOf(files: readonly PushFile[]): number {
  return files.reduce((sum, { byteLength }) => sum + byteLength, 0);
}
