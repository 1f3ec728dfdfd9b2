"""policy-store: full-text search over versioned, sectioned policy passages. Read-only, for every tenant."""

from psycopg.rows import class_row
from pydantic import BaseModel, ConfigDict, Field

from agentic_loop.sandbox.service import FromCaller, service_router
from agentic_loop.sandbox.settings import Service
from agentic_loop.sandbox.world import InWorld

router = service_router(Service.POLICY_STORE)


class Search(BaseModel):
    """A question in plain words. Without `version` the current version of each document is searched."""

    model_config = ConfigDict(extra="forbid")

    query: str = Field(min_length=1, max_length=1000)
    top_k: int = Field(default=3, ge=1, le=5)
    version: str | None = Field(default=None, max_length=20)


class Passage(BaseModel):
    """A section of a policy document."""

    chunk_id: str
    doc: str
    version: str
    section: str
    text: str


class Found(BaseModel):
    """The passages that fit best, best first; none if no word of the question occurs."""

    passages: list[Passage]


# Any word may match, so that a question in plain words finds something; passages with more and closer words
# rank higher. ts_rank_cd alone would count a word that is repeated as often as several words, hence the
# count of distinct words first.
_SEARCH = """
WITH asked AS (
    SELECT replace(plainto_tsquery('english', %(query)s)::text, '&', '|')::tsquery AS any_word,
           tsvector_to_array(to_tsvector('english', %(query)s)) AS words
)
SELECT chunk_id, doc, version, section, text
FROM sandbox_policy_store.passages, asked
WHERE search @@ any_word
  AND CASE WHEN %(version)s::text IS NULL THEN is_current ELSE version = %(version)s END
ORDER BY cardinality(ARRAY(SELECT unnest(words) INTERSECT SELECT unnest(tsvector_to_array(search)))) DESC,
         ts_rank_cd(search, any_word) DESC, chunk_id
LIMIT %(top_k)s
"""


@router.post("/policy/search")
async def search_policy(search: Search, world: InWorld, caller: FromCaller) -> Found:
    """The passages that answer the question."""
    async with (
        world.pool.connection() as connection,
        connection.cursor(row_factory=class_row(Passage)) as cursor,
    ):
        # NUL, which JSON may carry, is the one character that Postgres text cannot.
        await cursor.execute(_SEARCH, {**search.model_dump(), "query": search.query.replace("\0", " ")})
        return Found(passages=await cursor.fetchall())
