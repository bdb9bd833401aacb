// Asks the Hub: which commit a revision is, which files it has, and for their bytes.

import { setTimeout as wait } from 'node:timers/promises';
import { datasetInfo, listFiles, modelInfo } from '@huggingface/hub';
import { TrainerError, UsageError } from '../errors.js';
import { HubUnreachableError } from './hub-errors.js';
import { isCommit, type RepoKind } from './hub-name.js';
import type { HubSettings } from './hub-settings.js';
import { WatchedBlob } from './watched-blob.js';

/** A file of a repository. */
export interface HubFile {
  readonly path: string;
  readonly byteLength: number;
  /** The name of its content: the SHA-256 of a large file, git's SHA-1 of another. */
  readonly etag: string;
}

export interface HubClientOptions {
  /** What is asked for. Default: models. */
  readonly kind?: RepoKind | undefined;
  /** The flag that names it. Default --model. */
  readonly flag?: string | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Called with sentences about waits. */
  readonly onNote?: ((text: string) => void) | undefined;
  /** Called with bytes of requests as they are sent; negative where they have to be sent again. */
  readonly onSent?: ((bytes: number) => void) | undefined;
  /** The time before a request is made again, and a connection counts as dead. Default 1 s. */
  readonly pauseMs?: number | undefined;
}

/** What a call of the library is given, so that its requests are made here. */
export interface HubCalls {
  readonly hubUrl: string;
  readonly fetch: typeof fetch;
}

/** What a call of the library is about. */
export interface HubQuestion {
  /** The repository, or whatever else the Hub is asked about. */
  readonly about: string;
  /** The error of an answer that would be the same the next time. */
  readonly refuse: (response: Response) => TrainerError | Promise<TrainerError>;
}

const TRIES = 4;
const PAUSE_MS = 1000;
/** The longest wait that a Hub with too many requests may ask for. */
const MOST_WAIT_SECONDS = 90;
/** A server that sends nothing for so many pauses counts as gone. */
const DEAD_PAUSES = 30;
/** There is no such server, or it does not listen: not what a moment changes. */
const NO_WAY: ReadonlySet<string> = new Set(['ENOTFOUND', 'ECONNREFUSED', 'EAI_AGAIN']);
/** What may have been done though its answer was lost is not asked for again. */
const ONCE = /\/api\/(repos\/create|models\/.+\/commit\/)/;
const ETAG = /^[0-9a-f]{40,64}$/;
/** Names become places in the cache, and none may lead out of it. */
const NAME = /^(?!\.{0,2}(?:\/|$))[^/\\]+(?:\/(?!\.{0,2}(?:\/|$))[^/\\]+)*$/;

export class HubClient {
  readonly #settings: HubSettings;
  readonly #options: HubClientOptions;

  constructor(settings: HubSettings, options: HubClientOptions) {
    this.#settings = settings;
    this.#options = options;
  }

  /**
   * The commit that a revision is now.
   * @throws {UsageError} where there is no such repository or revision, or it may not be read
   * @throws {HubUnreachableError} where the Hub doesn't answer
   */
  async commitOf(repo: string, revision = 'main'): Promise<string> {
    return await this.ask(this.#reading(repo, revision), async (calls) => {
      const asked = { name: repo, revision, ...calls };
      const { sha } =
        this.#kind === 'dataset'
          ? await datasetInfo({ ...asked, additionalFields: ['sha'] })
          : await modelInfo({ ...asked, additionalFields: ['sha'] });
      if (!isCommit(sha)) {
        throw new Error(`the commit ${JSON.stringify(sha)}`);
      }
      return sha;
    });
  }

  /** All files of a commit, in folders too. Throws as commitOf does. */
  async filesOf(repo: string, commit: string): Promise<readonly HubFile[]> {
    return await this.ask(this.#reading(repo, commit), async (calls) => {
      const files: HubFile[] = [];
      for await (const { type, path, size, lfs, oid = '' } of listFiles({
        repo: { type: this.#kind, name: repo },
        recursive: true,
        revision: commit,
        ...calls,
      })) {
        const etag = lfs?.oid ?? oid;
        if (type === 'file' && ETAG.test(etag) && NAME.test(path)) {
          files.push({ path, byteLength: lfs?.size ?? size, etag });
        }
      }
      return files;
    });
  }

  /**
   * The bytes of a file from a place on, up to `end` where it is given, or all where the server has
   * no ranges. Throws as commitOf does.
   */
  async open(
    {
      repo,
      commit,
      path,
    }: { readonly repo: string; readonly commit: string; readonly path: string },
    { from, end }: { readonly from: number; readonly end?: number },
  ): Promise<{ readonly from: number; readonly pieces: AsyncIterable<Uint8Array> }> {
    const place = path.split('/').map(encodeURIComponent).join('/');
    const dead = new AbortController();
    const response = await this.#request(
      `${this.#page(repo)}/resolve/${commit}/${place}`,
      {
        headers: { range: `bytes=${from}-${end === undefined ? '' : end - 1}` },
        signal: dead.signal,
      },
      this.#reading(repo, commit),
    );
    const isRange = response.status === 206;
    return { from: isRange ? from : 0, pieces: this.#pieces(response, dead) };
  }

  /** The pieces of a body; a server that stops sending is given up. */
  async *#pieces(response: Response, dead: AbortController): AsyncGenerator<Uint8Array> {
    const { signal } = this.#options;
    const end = () => dead.abort();
    const timer = setTimeout(end, this.#deadMs);
    signal?.addEventListener('abort', end);
    try {
      for await (const piece of response.body ?? []) {
        timer.refresh();
        yield piece;
      }
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener('abort', end);
      end();
    }
  }

  get #kind(): RepoKind {
    return this.#options.kind ?? 'model';
  }

  /** The address of a repository for people, below which its files are. */
  #page(repo: string): string {
    const { endpoint } = this.#settings;
    return this.#kind === 'dataset' ? `${endpoint}/datasets/${repo}` : `${endpoint}/${repo}`;
  }

  get #pauseMs(): number {
    return this.#options.pauseMs ?? PAUSE_MS;
  }

  get #deadMs(): number {
    return DEAD_PAUSES * this.#pauseMs;
  }

  #reading(repo: string, revision: string): HubQuestion {
    const refuse = (response: Response) => this.#refusal(response, { repo, revision });
    return { about: `${repo}@${revision}`, refuse };
  }

  /**
   * Runs a call of the library; an answer that is not what it should be is the Hub's. The token
   * travels in `fetch`, whatever its form.
   * @throws what `question.refuse` makes of an answer
   * @throws {HubUnreachableError} where the Hub doesn't answer
   */
  async ask<T>(question: HubQuestion, run: (calls: HubCalls) => Promise<T>): Promise<T> {
    const { endpoint } = this.#settings;
    const call = (url: string | URL | Request, init: RequestInit = {}) =>
      this.#request(String(url), init, question);
    try {
      return await run({ hubUrl: endpoint, fetch: call as typeof fetch });
    } catch (cause) {
      this.#options.signal?.throwIfAborted();
      if (cause instanceof TrainerError || (cause as NodeJS.ErrnoException).syscall !== undefined) {
        throw cause;
      }
      throw new HubUnreachableError(
        `${endpoint} answered about ${question.about} what is no answer of the Hub (${(cause as Error).message}).`,
        { cause },
      );
    }
  }

  /** One request, made again where that may help. */
  async #request(
    url: string,
    init: RequestInit,
    { refuse }: Pick<HubQuestion, 'refuse'>,
  ): Promise<Response> {
    const { signal, onSent } = this.#options;
    const { token, endpoint } = this.#settings;
    const headers = new Headers(init.headers);
    // Large files go to another origin, by addresses that are secrets themselves.
    if (token !== undefined && url.startsWith(`${endpoint}/`)) {
      headers.set('authorization', `Bearer ${token}`);
    }
    for (let left = ONCE.test(url) ? 0 : TRIES - 1; ; left--) {
      signal?.throwIfAborted();
      const headersCome = new AbortController();
      const timer = setTimeout(() => headersCome.abort(), this.#deadMs);
      const ends = [headersCome.signal, signal, init.signal].filter((end) => end != null);
      let sent = 0;
      const body = watched(init.body, (bytes) => {
        timer.refresh();
        sent += bytes;
        onSent?.(bytes);
      });
      const response = await fetch(url, { ...init, headers, body, signal: AbortSignal.any(ends) })
        .catch((error: Error) => error)
        .finally(() => clearTimeout(timer));
      signal?.throwIfAborted();
      if (response instanceof Response && response.ok) {
        return response;
      }
      onSent?.(-sent);
      const pauseMs = this.#pauseBefore(response, left);
      if (pauseMs === undefined) {
        throw await refuse(response as Response);
      }
      await wait(pauseMs, undefined, { signal });
    }
  }

  /** How long to wait before the request is made again; undefined for an answer that stays. */
  #pauseBefore(response: Response | Error, left: number): number | undefined {
    const { endpoint } = this.#settings;
    if (response instanceof Error) {
      if (left > 0 && !NO_WAY.has(reasonOf(response))) {
        return this.#pauseMs;
      }
      throw new HubUnreachableError(`${endpoint} can't be reached (${reasonOf(response)}).`, {
        cause: response,
      });
    }
    if (response.status === 429) {
      const seconds = Number(response.headers.get('retry-after') ?? 1);
      if (left > 0 && seconds <= MOST_WAIT_SECONDS) {
        this.#options.onNote?.(`${endpoint} asks to wait ${seconds} s (429).`);
        return Math.max(seconds * 1000, this.#pauseMs);
      }
      throw new HubUnreachableError(
        `${endpoint} has too many requests from here (429), and asks to wait ${seconds} s. Come back then, or set HF_TOKEN: users that it knows may ask more.`,
      );
    }
    if (response.status >= 500) {
      if (left > 0) {
        return this.#pauseMs;
      }
      throw new HubUnreachableError(`${endpoint} answers ${response.status}. Try again later.`);
    }
    return undefined;
  }

  /** The error of an answer that would be the same the next time. */
  #refusal(
    { status, headers }: Response,
    { repo, revision }: { readonly repo: string; readonly revision: string },
  ): UsageError {
    const { endpoint, token } = this.#settings;
    const { flag = '--model' } = this.#options;
    const page = this.#page(repo);
    const code = headers.get('x-error-code');
    if (code === 'GatedRepo') {
      const who = token === undefined ? ' Then set HF_TOKEN to a token of that user.' : '';
      return new UsageError(
        `${flag}: ${repo} is gated. Accept its terms on ${page}, with the user whose token HF_TOKEN has.${who}`,
      );
    }
    if (code === 'RevisionNotFound') {
      return new UsageError(
        `${flag}: ${repo} has no revision "${revision}". ${page}/tree/main lists its branches and tags.`,
      );
    }
    if (status === 401 || status === 403 || status === 404) {
      const who =
        token === undefined
          ? 'If it is private, set HF_TOKEN to a token that may read it'
          : 'If it is private, HF_TOKEN must be a token that may read it';
      const none =
        this.#kind === 'model'
          ? `there is no directory ${repo} here, and ${endpoint} has no model of that name`
          : `${endpoint} has no dataset ${repo}`;
      return new UsageError(`${flag}: ${none} (${status}). Look at the name. ${who}.`);
    }
    return new UsageError(`${flag}: ${endpoint} refuses ${repo} (${status}).`);
  }
}

/** A body whose bytes are told as they are sent; one that is none stays as it is. */
function watched(body: RequestInit['body'], onBytes: (bytes: number) => void) {
  if (typeof body === 'string') {
    return new WatchedBlob(new Blob([body]), onBytes);
  }
  return body instanceof Blob ? new WatchedBlob(body, onBytes) : (body ?? null);
}

/** Why a request has failed, as the system names it. */
export function reasonOf(error: Error): string {
  const { code, name, message } = (error.cause ?? error) as NodeJS.ErrnoException;
  return name === 'AbortError' ? 'no answer in time' : (code ?? message);
}
