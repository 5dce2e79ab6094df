-- What the prepared mark calls where it found no receipt to mark: the error of the other marks.
CREATE FUNCTION webhook_lease_lost() RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a lease was lost' USING ERRCODE = 'OH001';
END $$;
