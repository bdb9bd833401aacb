// A conversation, as data hold it and templates write it.

/**
 * One message of a conversation. Templates read further fields, such as `tool_calls`, with which
 * there may be no content.
 */
export interface ChatMessage {
  readonly role: string;
  readonly content: string | null;
  readonly [field: string]: unknown;
}

/** A conversation, and all that a template reads beside its messages. */
export interface Conversation {
  readonly messages: readonly ChatMessage[];
  /** The places of answers that are no targets. */
  readonly unlearnt?: ReadonlySet<number>;
  /** Variables of the template, such as `tools`. */
  readonly values?: Readonly<Record<string, unknown>>;
  /** What else stood beside the messages; it is an error where the template would read it. */
  readonly others?: Readonly<Record<string, unknown>>;
}
