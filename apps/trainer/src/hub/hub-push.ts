// Pushes files to a repository of the Hub: finds out whose the token is and what is there, creates
// what is not, and makes one commit of all files, which is there whole or not at all.
//
// Large files go by Git LFS: their bytes to a storage that signed addresses name, their hashes into
// the commit. The library's other way, Xet, has no progress in bytes, and few servers but the Hub.

import { commit, createRepo, modelInfo, whoAmI } from '@huggingface/hub';
import { TrainerError, UsageError } from '../errors.js';
import { type HubCalls, HubClient, type HubClientOptions } from './hub-client.js';
import { HubUnreachableError } from './hub-errors.js';
import { isCommit } from './hub-name.js';
import type { HubSettings } from './hub-settings.js';

/** A file as it is pushed. */
export interface PushFile {
  readonly path: string;
  /** The bytes, or the address of a file that has them. */
  readonly content: Blob | URL;
  readonly byteLength: number;
}

/** A repository as it is before a push. */
export interface PushTarget {
  readonly isPrivate: boolean;
  /** The newest commit of its main branch. */
  readonly commit: string;
  /** The names of its files at the top level. */
  readonly files: readonly string[];
}

/** The license of a model in the fields of its card. */
export type License = Readonly<Record<string, string>>;

const LICENSE_FIELDS = ['license', 'license_name', 'license_link'];
const COMMIT = /\/api\/models\/.+\/commit\//;
/** The library wants a token of a certain form, which travels in `fetch` whatever its form. */
const NO_TOKEN = { accessToken: '' };

export class HubPush {
  readonly #repo: string;
  readonly #settings: HubSettings;
  readonly #client: HubClient;
  /** Whose the token is, such as `ann, of the organizations ocean and sea`. */
  #owner = 'somebody';

  /** @throws {UsageError} where the settings forbid to push, or have no token */
  constructor(repo: string, settings: HubSettings, options: HubClientOptions = {}) {
    const { endpoint, isOffline, token } = settings;
    if (isOffline) {
      throw new UsageError(
        '--to: HF_HUB_OFFLINE forbids to ask the Hub. Leave it out for this command.',
      );
    }
    if (token === undefined) {
      throw new UsageError(
        `--to: a push needs a token that may write. Make one on ${endpoint}/settings/tokens and set HF_TOKEN to it, or log in by hf auth login.`,
      );
    }
    this.#repo = repo;
    this.#settings = settings;
    this.#client = new HubClient(settings, options);
  }

  /** The address of the repository's page. */
  get page(): string {
    return `${this.#settings.endpoint}/${this.#repo}`;
  }

  /**
   * The repository as it is now; undefined where there is none.
   * @throws {UsageError} for a token that is unknown, or that may only read
   * @throws {HubUnreachableError} where the Hub doesn't answer
   */
  async find(): Promise<PushTarget | undefined> {
    await this.#learnOwner();
    const repo = this.#repo;
    let isMissing = false;
    const refuse = (response: Response) => {
      isMissing = response.status === 401 || response.status === 404;
      return this.#refusal(response);
    };
    try {
      return await this.#client.ask({ about: repo, refuse }, async (calls) => {
        const asked = { name: repo, revision: 'main', additionalFields: ['sha' as const] };
        const { sha, private: isPrivate } = await modelInfo({ ...asked, ...calls });
        if (!isCommit(sha)) {
          throw new Error(`the commit ${JSON.stringify(sha)}`);
        }
        const files = await this.#client.filesOf(repo, sha);
        return { isPrivate: isPrivate === true, commit: sha, files: files.map(({ path }) => path) };
      });
    } catch (error) {
      if (isMissing) {
        return undefined;
      }
      throw error;
    }
  }

  /** Creates the repository. Throws as commit does. */
  async create({ isPrivate }: { readonly isPrivate: boolean }): Promise<void> {
    const visibility = isPrivate ? 'private' : 'public';
    await this.#ask((calls) => createRepo({ repo: this.#repo, visibility, ...NO_TOKEN, ...calls }));
  }

  /**
   * Makes one commit of all files, and of the names that are to go.
   * @param options.parent the commit that must still be the newest one; undefined for a new
   * repository
   * @throws {UsageError} where the token may not write there, or somebody has pushed meanwhile
   * @throws {HubUnreachableError} where the Hub or its storage doesn't answer
   */
  async commit(
    files: readonly PushFile[],
    options: {
      readonly title: string;
      readonly parent: string | undefined;
      readonly removed: readonly string[];
      readonly signal?: AbortSignal | undefined;
      /** Called before the request whose answer may be lost though the commit is made. */
      readonly onCommit?: () => void;
    },
  ): Promise<void> {
    const { title, parent, removed, signal, onCommit } = options;
    try {
      await this.#ask((calls) =>
        commit({
          repo: this.#repo,
          title,
          operations: [
            ...files.map(({ path, content }) => ({
              ...{ operation: 'addOrUpdate' as const, path, content },
            })),
            ...removed.map((path) => ({ operation: 'delete' as const, path })),
          ],
          useXet: false,
          ...(parent === undefined ? {} : { parentCommit: parent }),
          ...(signal === undefined ? {} : { abortSignal: signal }),
          ...NO_TOKEN,
          ...calls,
          fetch: (url, init) => {
            if (COMMIT.test(String(url))) {
              onCommit?.();
            }
            return calls.fetch(url, init);
          },
        }),
      );
    } catch (error) {
      if (!(error instanceof HubUnreachableError)) {
        throw error;
      }
      throw new HubUnreachableError(
        `${error.message} Run the command again: large files that have arrived whole are not sent twice.`,
        { cause: error },
      );
    }
  }

  /** The license that the card of a model on the Hub names; undefined where none is known. */
  async licenseOf(name: string): Promise<License | undefined> {
    const refuse = ({ status }: Response) => new TrainerError(`${name} (${status})`);
    try {
      const { cardData } = await this.#client.ask({ about: name, refuse }, (calls) =>
        modelInfo({ name, revision: 'main', additionalFields: ['cardData'], ...calls }),
      );
      const fields = Object.entries(cardData ?? {}).filter(
        ([key, value]) => LICENSE_FIELDS.includes(key) && typeof value === 'string',
      );
      const found = Object.fromEntries(fields) as License;
      return found.license === undefined ? undefined : found;
    } catch (error) {
      if (error instanceof TrainerError && error.code !== 'SIGNAL') {
        return undefined; // a card without a license is as good as one can tell
      }
      throw error;
    }
  }

  async #learnOwner(): Promise<void> {
    const { endpoint } = this.#settings;
    const who = await this.#ask((calls) => whoAmI({ ...NO_TOKEN, ...calls }));
    const orgs = who.type === 'user' ? who.orgs.map(({ name }) => name) : [];
    this.#owner = orgs.length === 0 ? who.name : `${who.name}, who is in ${orgs.join(', ')}`;
    if (who.auth.accessToken?.role === 'read') {
      throw new UsageError(
        `--to: the token in HF_TOKEN may only read. Make one that may write on ${endpoint}/settings/tokens.`,
      );
    }
  }

  #ask<T>(run: (calls: HubCalls) => Promise<T>): Promise<T> {
    const refuse = (response: Response) => this.#refusal(response);
    return this.#client.ask({ about: this.#repo, refuse }, run);
  }

  /** The error of an answer that would be the same the next time. */
  async #refusal(response: Response): Promise<UsageError> {
    const { endpoint } = this.#settings;
    const { status } = response;
    const repo = this.#repo;
    if (!response.url.startsWith(`${endpoint}/`)) {
      return new UsageError(
        `--to: the storage of ${endpoint} refuses a file (${status}). Run the command again: its address may be too old.`,
      );
    }
    if (status === 401) {
      return new UsageError(
        `--to: ${endpoint} doesn't know the token of HF_TOKEN, or else of hf auth login (401). Make one that may write on ${endpoint}/settings/tokens.`,
      );
    }
    const why = `(${status}${await saidBy(response)})`;
    if (status === 403 || status === 404) {
      return new UsageError(
        `--to: the token in HF_TOKEN may not write to ${repo} ${why}. It is that of ${this.#owner}: give a name there, or a token that may write to ${repo}.`,
      );
    }
    if (status === 409 || status === 412) {
      return new UsageError(
        `--to: something else has been pushed to ${repo} meanwhile ${why}. Look at ${this.page}, and run the command again.`,
      );
    }
    return new UsageError(`--to: ${endpoint} refuses the push to ${repo} ${why}.`);
  }
}

/** What an answer says in words, behind a colon; empty where it says nothing. */
async function saidBy(response: Response): Promise<string> {
  const text = await response.text().catch(() => '');
  try {
    const { error } = JSON.parse(text) as { readonly error?: unknown };
    return typeof error === 'string' ? `: ${error.replaceAll(/\s+/g, ' ').slice(0, 200)}` : '';
  } catch {
    return '';
  }
}
