"""Is this work done already, and who may say so?"""
